// OrtOptimizer: what the file optimizer_model.onnx of training artifacts says: one AdamWOptimizer
// or SGDOptimizerV2 over all parameters, with InplaceClipGradNorm before it or not.
//
// Any other node is refused: it could mix parameters, which lie in shards here.
//
// Threads: any. Errors: kInput naming file, node, expected and found.
#pragma once

#include <optional>
#include <string>

#include "kernels/base/status.h"

namespace ofsdp::importer {

struct OrtOptimizer {
  enum class Kind { kAdamW, kSgd };
  Kind kind = Kind::kAdamW;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float eps = 1e-8f;
  float weight_decay = 0.01f;
  bool bias_correction = true;
  bool transformers = false;  // adam_mode 1: AdamW as Hugging Face Transformers had it
  std::optional<float> clip_norm;
};

Result<OrtOptimizer> read_ort_optimizer(const std::string& path);

}  // namespace ofsdp::importer
