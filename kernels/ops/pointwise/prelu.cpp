// PRelu(x, slope): y = x where x >= 0, else slope x; slope broadcasts to x. dx = dy where x > 0,
// else dy slope; dslope = the sum of dy x where x < 0.
// https://onnx.ai/onnx/operators/onnx__PRelu.html
#include "kernels/cpu/integer_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc desc, infer_broadcast(c));
  if (desc.shape != c.inputs[0].shape) {
    return input_error("expected a slope that broadcasts to {}, found {}", c.inputs[0].text(),
                       c.inputs[1].text());
  }
  return std::vector{std::move(desc)};
}

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  const Ref zero = b.scalar(b.desc(dy).dtype, 0);
  const Ref above = b.emit1("Greater", {b.input(0), zero});
  if (b.needs_grad(0)) {
    b.set_grad(0, b.emit1("Where", {above, dy, b.emit1("Mul", {dy, b.input(1)})}));
  }
  if (!b.needs_grad(1)) return;
  const Ref product = b.emit1("Mul", {dy, b.input(0)});
  b.set_grad(1, b.sum_to(b.emit1("Where", {above, zero, product}), b.input(1)));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double x, double slope) { return x < 0 ? slope * x : x; });
}

struct PRelu {
  template <typename T>
  OFSDP_INLINE T operator()(T x, T slope) const {
    const T scaled = wrapping(x, slope, [](auto p, auto q) { return p * q; });
    return x < T{0} ? scaled : x;
  }
};

constexpr TypeSet kTypes = kFloatTypes | type_bit(DType::kInt32) | type_bit(DType::kInt64) |
                           type_bit(DType::kUInt32) | type_bit(DType::kUInt64);

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  std::vector<SampleCase> list = {
      {.name = "channels", .inputs = {{f, {2, 3, 4, 5}}, {f, {3, 1, 1}}}},
      {.name = "one", .inputs = {{f, {2, 3, 4, 5}}, {f, {1}}}},
      {.name = "image", .inputs = {{f, {2, 3, 4, 5}}, {f, {2, 3, 4, 5}}}},
      {.name = "empty", .inputs = {{f, {0, 4}}, {f, {4}}}}};
  for (DType dtype : types_in(kTypes)) list.push_back(sample_of(dtype, "pair", {{2, 9}, {2, 9}}));
  return list;
}

}  // namespace

void add_prelu(Registry& registry) {
  registry.add(pointwise({.name = "PRelu",
                          .min_inputs = 2,
                          .first_opset = 9,
                          .infer = infer,
                          .grad = grad,
                          .reference = reference,
                          .cpu = binary_kernels<PRelu, kTypes>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
