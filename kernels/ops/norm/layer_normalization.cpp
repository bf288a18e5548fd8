// LayerNormalization(x, scale, bias), attributes axis, epsilon: y = h scale + bias with
// h = (x - mean) inv, inv = 1 / sqrt(variance + epsilon), over the axes from `axis` on; outputs 1
// and 2 are mean and inv, in float32 (stash_type). Also com.microsoft.LayerNormalization.
// dx, dscale, dbias: ofsdp.LayerNormalizationGrad(dy, x, scale, mean, inv, dmean, dinv), see
// kernels/cpu/norm_rows.h; without mean it is that of RMSNormalization.
// https://onnx.ai/onnx/operators/onnx__LayerNormalization.html
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/norm/normalized_rows.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  OFSDP_RETURN_IF_ERROR(normalize_axis(c.attributes.i("axis", -1), x.shape.rank()).status());
  OFSDP_RETURN_IF_ERROR(check_norm_operand(x, c.inputs[1], "scale"));
  if (c.has(2)) OFSDP_RETURN_IF_ERROR(check_norm_operand(x, c.inputs[2], "bias"));
  const TensorDesc stats{DType::kFloat32, stats_shape(x.shape, c.attributes)};
  return std::vector{TensorDesc{x.dtype, x.shape}, stats, stats};
}

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0) ? b.grad_output(0)
                                  : b.emit1("Expand", {b.scalar(b.desc(b.input(0)).dtype, 0),
                                                       b.ints(b.desc(b.input(0)).shape.axes())});
  b.set_grad(0, emit_norm_grad(b,
                               {dy, b.input(0), b.input(1), b.output(1), b.output(2),
                                b.grad_output(1), b.grad_output(2)},
                               1, 2));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const bool bias = c.inputs.size() > 2 && c.inputs[2].desc.present();
  return reference_norm(c.inputs[0], &c.inputs[1], bias ? &c.inputs[2] : nullptr, c.attributes,
                        true);
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  return create_norm<T>(p, true, {});
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = norm_samples(true, 1);
  append(list, norm_samples(false, 3));
  return list;
}

OpDef definition(const char* domain) {
  return {.domain = domain,
          .name = "LayerNormalization",
          .min_inputs = 2,
          .infer = infer,
          .grad = grad,
          .reference = reference,
          .cpu = {{"rows", accepts_norm<float>, create<float>},
                  {"bfloat16", accepts_norm<BFloat16>, create<BFloat16>},
                  {"float16", accepts_norm<Half>, create<Half>},
                  in_float32<accepts_norm<float>, create<float>>(),
                  {"float64", accepts_norm<double>, create<double>}},
          .samples = samples,
          .inplace_inputs = {0}};
}

}  // namespace

void add_layer_normalization(Registry& registry) {
  OpDef op = definition("");
  op.first_opset = 17;
  registry.add(std::move(op));
  registry.add(definition("com.microsoft"));
}

}  // namespace ofsdp::kernels::ops
