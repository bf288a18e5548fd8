// A folder of ONNX Runtime's training artifacts (ort_artifacts.h) as a TrainingSource. Its training
// model brings its own backward; the optimizer continues from the states in the checkpoint.
//
// State k of a parameter is its tensor "momentum<k>": AdamW's averages of the gradient and of its
// square; SGD's momentum, which SGDOptimizerV2 keeps but does not use.
//
// The trained model is a folder with the names of the input: unchanged training and optimizer
// model, the checkpoint with the optimizer's states, the eval model with weights inside. ONNX
// Runtime's own Module feeds the weights to its eval model, so an unchanged one exists too, as
// module_eval_model.onnx. All ranks write at once; no rank gathers a weight.
//
// Errors: kInput from check_output for an impossible path or if the formats cannot hold so many
// bytes; kInput from load_state for states that do not fit; kFault for the disk.
#pragma once

#include "importer/training_source.h"

namespace ofsdp::importer {

Result<std::unique_ptr<TrainingSource>> open_ort_source(const std::string& folder,
                                                        const Operators& operators);

}  // namespace ofsdp::importer
