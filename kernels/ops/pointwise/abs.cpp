// Abs: y = |x|, of all numbers; the smallest integer wraps. dx = dy sign(x), 0 at 0
// (ofsdp.AbsGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__Abs.html
#include <cmath>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/integer_math.h"
#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "AbsGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::abs(x); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(c, [](double d, double x) { return x > 0 ? d : x < 0 ? -d : 0; });
}

struct Abs {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>) return math::fabs(x);
    if constexpr (std::is_unsigned_v<T>) return x;
    return x < T{0} ? wrapping(T{0}, x, [](auto p, auto q) { return p - q; }) : x;
  }
};

struct AbsGrad {
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return x > T{0} ? d : (x < T{0} ? -d : T{0});
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  append(list, vectors_of_types(kIntegerTypes));
  list.push_back(extreme_sample());
  return list;
}

void abs_grad_body(BodyBuilder& b) {
  b.set_output(0, b.mul(b.input(0), b.emit1("Sign", {b.input(1)})));
}

}  // namespace

void add_abs(Registry& registry) {
  registry.add(pointwise({.name = "Abs",
                          .first_opset = 13,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Abs, kNumberTypes>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "AbsGrad",
                               .body = abs_grad_body,
                               .reference = grad_reference,
                               .cpu = binary_kernels<AbsGrad>(),
                               .samples = [] { return float_pair_samples(); }}));
}

}  // namespace ofsdp::kernels::ops
