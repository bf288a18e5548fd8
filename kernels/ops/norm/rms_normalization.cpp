// RMSNormalization(x, scale), attributes axis, epsilon: y = x inv scale with
// inv = 1 / sqrt(mean of x^2 + epsilon), over the axes from `axis` on. We add an output 1, inv.
// dx, dscale: ofsdp.LayerNormalizationGrad without mean, see kernels/cpu/norm_rows.h.
// https://onnx.ai/onnx/operators/onnx__RMSNormalization.html
#include "kernels/ops/norm/rms_normalization.h"

#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {

Result<std::vector<TensorDesc>> infer_rms(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  OFSDP_RETURN_IF_ERROR(normalize_axis(c.attributes.i("axis", -1), x.shape.rank()).status());
  OFSDP_RETURN_IF_ERROR(check_norm_operand(x, c.inputs[1], "scale"));
  return std::vector{TensorDesc{c.inputs[1].dtype, x.shape},
                     TensorDesc{DType::kFloat32, stats_shape(x.shape, c.attributes)}};
}

void grad_rms(GradBuilder& b) {
  const Ref dy = b.grad_output(0) ? b.grad_output(0)
                                  : b.emit1("Expand", {b.scalar(b.desc(b.input(1)).dtype, 0),
                                                       b.ints(b.desc(b.input(0)).shape.axes())});
  const NormGrad g{dy, b.input(0), b.input(1), Ref{}, b.output(1), Ref{}, b.grad_output(1)};
  b.set_grad(0, emit_norm_grad(b, g, 1, 2));
}

std::vector<RefTensor> reference_rms(const ReferenceContext& c) {
  auto made = reference_norm(c.inputs[0], &c.inputs[1], nullptr, c.attributes, false);
  return {made[0], made[2]};
}

namespace {

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  return create_norm<T>(p, false, {.bias = -1, .mean = -1, .inv = 1});
}

}  // namespace

std::vector<Implementation> rms_kernels() {
  return {{"rows", accepts_norm<float>, create<float>},
          {"bfloat16", accepts_norm<BFloat16>, create<BFloat16>},
          {"float16", accepts_norm<Half>, create<Half>},
          in_float32<accepts_norm<float>, create<float>>(),
          {"float64", accepts_norm<double>, create<double>}};
}

void add_rms_normalization(Registry& registry) {
  registry.add({.name = "RMSNormalization",
                .min_inputs = 2,
                .first_opset = 23,
                .infer = infer_rms,
                .grad = grad_rms,
                .reference = reference_rms,
                .cpu = rms_kernels(),
                .samples = [] { return norm_samples(false, 1); },
                .inplace_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
