// SimplifiedLayerNormalization(x, scale): ONNX Runtime's name of RMSNormalization, in its domain and in
// ai.onnx; output 1 is inv. See rms_normalization.cpp, which has formula and derivative.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#include "kernels/ops/norm/rms_normalization.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {

void add_simplified_layer_normalization(Registry& registry) {
  for (const char* domain : {"", "com.microsoft"}) {
    registry.add({.domain = domain,
                  .name = "SimplifiedLayerNormalization",
                  .min_inputs = 2,
                  .infer = infer_rms,
                  .grad = grad_rms,
                  .reference = reference_rms,
                  .cpu = rms_kernels(),
                  .samples = [] { return norm_samples(false, 2); },
                  .inplace_inputs = {0}});
  }
}

}  // namespace ofsdp::kernels::ops
