// Div: y = a / b, broadcast, of all numbers; integers are cut towards 0. da = dy / b,
// db = -dy y / b, each summed over what was broadcast. An integer divided by 0 is an error of the
// data.
// https://onnx.ai/onnx/operators/onnx__Div.html
#include <cmath>

#include "kernels/cpu/integer_division.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref scaled = b.emit1("Div", {b.grad_output(0), b.input(1)});
  if (b.needs_grad(0)) b.set_grad(0, b.sum_to(scaled, b.input(0)));
  if (!b.needs_grad(1)) return;
  const Ref product = b.emit1("Mul", {scaled, b.output(0)});
  b.set_grad(1, b.emit1("Neg", {b.sum_to(product, b.input(1))}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const bool whole = is_integer(c.inputs[0].desc.dtype);
  return binary_reference(
      c, [whole](double a, double b) { return whole ? std::trunc(a / b) : a / b; });
}

struct Div {
  template <typename T>
  OFSDP_INLINE T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      return a / b;
    } else {
      return wrapping_quotient(a, b);
    }
  }
};

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_divisor_check(p, create_binary_of<Div, kNumberTypes>(p));
}

void away_from_zero(size_t input, std::vector<double>& values) {
  if (input != 1) return;
  for (double& v : values) v = v < 0 ? v - 1 : v + 1;
}

}  // namespace

void add_div(Registry& registry) {
  registry.add(
      pointwise({.name = "Div",
                 .min_inputs = 2,
                 .first_opset = 14,
                 .grad = grad,
                 .reference = reference,
                 .cpu = kernels_by<accepts_binary_of<kNumberTypes>, create>(),
                 .samples = [] { return samples_of_types(kNumberTypes, away_from_zero); }}));
}

}  // namespace ofsdp::kernels::ops
