// com.microsoft.SkipSimplifiedLayerNormalization(x, skip, scale, bias): with s = x + skip + bias,
// y = RMSNormalization(s, scale) over the last axis; output 1 is unused (0), 2 is inv, 3 is s.
// Derivative as in skip_layer_normalization.cpp, without mean.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/norm/skip_layer_norm.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr SkipNorm kSimplified{false};

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  return infer_skip_norm(c, kSimplified);
}
void grad(GradBuilder& b) { grad_of_skip_norm(b, kSimplified); }
std::vector<RefTensor> reference(const ReferenceContext& c) {
  return reference_skip_norm(c, kSimplified);
}
std::unique_ptr<Kernel> create(const Problem& p) { return create_skip_norm(p, kSimplified); }

}  // namespace

void add_skip_simplified_layer_normalization(Registry& registry) {
  registry.add(
      {.domain = "com.microsoft",
       .name = "SkipSimplifiedLayerNormalization",
       .min_inputs = 3,
       .infer = infer,
       .grad = grad,
       .reference = reference,
       .cpu = {{"rows", accepts_skip_norm, create}, in_float32<accepts_skip_norm, create>()},
       .samples = [] { return skip_norm_samples(kSimplified); }});
}

}  // namespace ofsdp::kernels::ops
