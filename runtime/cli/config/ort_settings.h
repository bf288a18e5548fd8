// What a folder of ONNX Runtime's training artifacts says about a run: its training model stands for
// MODEL.onnx, and its optimizer for --optimizer and the options that go with it, as if they stood in
// the YAML file beside the model. Flags may change the numbers; what contradicts the artifacts is
// refused.
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

// What no option says, and what options must not say.
Status settle_ort(const OrtSettings& settings, Options& options);

}  // namespace ofsdp::cli
