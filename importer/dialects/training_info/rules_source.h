// A model with a training_info as a TrainingSource. Its optimizer is the update in the file; states
// are initializers of the algorithm or of the model's graph. The trained model is the file with
// trained weights, states and scalars.
//
// Errors: kInput naming file and initializer or node; kFault for the disk.
#pragma once

#include "importer/dialects/training_info/update_rules.h"
#include "importer/training_source.h"

namespace ofsdp::importer {

// `freeze`: patterns of names that stay as they are.
Result<std::unique_ptr<TrainingSource>> open_rules_source(OnnxFile file, TrainingInfo info,
                                                          const std::vector<std::string>& freeze,
                                                          const Operators& operators);

// Checks that every state of the trained file will have a place in it.
Status check_places(const OnnxFile& file, const UpdateRules& rules);

}  // namespace ofsdp::importer
