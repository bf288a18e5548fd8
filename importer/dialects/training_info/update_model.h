// The second half of split_training_info: the nodes between the known values of an update
// (gradients, initializers) and the values that update_binding names, as a model of their own.
//
// Fills in `split`. Threads: any. Errors: kInput without the path.
#pragma once

#include <set>

#include "importer/dialects/training_info/training_info.h"

namespace ofsdp::importer {

// `forward`: every name that the loss depends on.
Status build_update_model(const OnnxFile& file, const onnx::ModelProto& model,
                          const std::vector<AlgorithmGraph>& algorithms,
                          const std::set<std::string>& forward, SplitTraining& split);

}  // namespace ofsdp::importer
