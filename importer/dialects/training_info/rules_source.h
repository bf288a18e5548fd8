// A model with a training_info as a TrainingSource. Its optimizer is the update in the file; states
// are initializers of the algorithm or of the model's graph. The trained model is the file with
// trained weights, states and scalars.
//
// Errors: kInput naming file and initializer or node; kFault for the disk.
#pragma once

#include <optional>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "importer/graph/update_rules.h"
#include "importer/training_source.h"

namespace ofsdp::importer {

// The training_info of a model: the update of its trained parameters, checked to run on shards
// ([Note: what an update may be] in importer/graph/update_rules.h), and the model's graph with its
// loss. The registry must outlive it. Errors: kInput naming file, node and tensors.

struct TrainingInfo {
  UpdateRules rules;
  std::string forward;  // the model with the nodes of the loss, serialized
};

// Returns nothing if the model has no training_info.
Result<std::optional<TrainingInfo>> read_training_info(const OnnxFile& file,
                                                       const Operators& operators);

// `freeze`: patterns of names of frozen weights.
Result<std::unique_ptr<TrainingSource>> open_rules_source(OnnxFile file, TrainingInfo info,
                                                          const std::vector<std::string>& freeze,
                                                          const Operators& operators);

// Checks that the trained file has a place for every state.
Status check_places(const OnnxFile& file, const UpdateRules& rules);

}  // namespace ofsdp::importer
