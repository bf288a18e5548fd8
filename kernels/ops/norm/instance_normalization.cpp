// InstanceNormalization(x, scale, bias), attribute epsilon: GroupNormalization with a group for
// each channel; formula and derivative in group_normalization.cpp.
// https://onnx.ai/onnx/operators/onnx__InstanceNormalization.html
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/norm/group_norm.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

int64_t channels(const Shape& x) { return x.rank() > 1 ? x[1] : 1; }

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  return infer_group_norm(c, channels(c.inputs[0].shape));
}

void grad(GradBuilder& b) { grad_of_group_norm(b, channels(b.desc(b.input(0)).shape)); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return reference_group_norm(c, channels(c.inputs[0].desc.shape));
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  return create_group_norm<T>(p, channels(p.in(0).shape));
}

std::vector<SampleCase> samples() {
  return {group_norm_sample("image", {2, 3, 4, 5}, 3), group_norm_sample("line", {3, 4, 37}, 4),
          group_norm_sample("empty", {0, 4, 5}, 4),
          group_norm_sample("float64", {2, 4, 5}, 4, DType::kFloat64, 1e-12),
          group_norm_sample("float16", {2, 4, 5}, 4, DType::kFloat16, 3e-3)};
}

}  // namespace

void add_instance_normalization(Registry& registry) {
  registry.add({.name = "InstanceNormalization",
                .min_inputs = 3,
                .first_opset = 6,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"rows", accepts_group_norm<float>, create<float>},
                        in_float32<accepts_group_norm<float>, create<float>>(),
                        {"float64", accepts_group_norm<double>, create<double>}},
                .samples = samples,
                .inplace_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
