// Neg: y = -x, of floats and signed integers; the smallest integer wraps. dx = -dy.
// https://onnx.ai/onnx/operators/onnx__Neg.html
#include "kernels/cpu/integer_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { b.set_grad(0, b.emit1("Neg", {b.grad_output(0)})); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return -x; });
}

struct Neg {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>) return -x;
    return wrapping(T{0}, x, [](auto p, auto q) { return p - q; });
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  append(list, vectors_of_types(kSignedIntegers));
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_neg(Registry& registry) {
  registry.add(pointwise({.name = "Neg",
                          .first_opset = 13,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Neg, kFloatTypes | kSignedIntegers>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
