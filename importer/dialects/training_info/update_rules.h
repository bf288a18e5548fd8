// Reads a model's training_info: how it updates its trained parameters, checked to be an update
// that runs on shards ([Note: what an update may be] in importer/graph/update_rules.h), and the
// model's graph with its loss.
//
// All members are values; the registry outlives them. Threads: any. Errors: kInput naming file,
// node and the tensors concerned.
#pragma once

#include <optional>

#include "importer/file/onnx_file.h"
#include "importer/graph/lowering.h"
#include "importer/graph/update_rules.h"

namespace ofsdp::importer {

struct TrainingInfo {
  UpdateRules rules;
  std::string forward;  // the model with the nodes of the loss, serialized
};

// None when the model has no training_info.
Result<std::optional<TrainingInfo>> read_training_info(const OnnxFile& file,
                                                       const Operators& operators);

}  // namespace ofsdp::importer
