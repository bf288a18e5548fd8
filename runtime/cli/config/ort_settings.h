// The settings of a run on a folder of ONNX Runtime's training artifacts. Its training model takes
// the place of MODEL.onnx, and its optimizer that of --optimizer and the options that go with it,
// as if the YAML file of the model had them. Flags may change the numbers; flags that contradict
// the artifacts are refused.
//
// Ownership: values. Threads: one. Errors: kInput naming flag or file, expected and found.
#pragma once

#include <optional>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/dialects/onnxruntime/ort_optimizer.h"
#include "runtime/cli/options/option_reader.h"

namespace ofsdp::cli {

struct OrtSettings {
  std::string folder;
  OrtPaths paths;
  std::optional<OrtOptimizer> optimizer;
};

// Tells `reader` what the folder says.
Result<OrtSettings> read_ort_settings(const std::string& folder, OptionReader& reader);

// After all sources: whether the optimizer is still the folder's.
Status check_ort_optimizer(const OrtSettings& settings, const OptionReader& reader);

// Whether the options leave the artifacts what is theirs to say.
Status check_ort_options(const OrtSettings& settings, const Options& options);

}  // namespace ofsdp::cli
