// Tan: y = tan x. dx = dy (1 + y^2).
// https://onnx.ai/onnx/operators/onnx__Tan.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  const Ref square = b.emit1("Mul", {b.output(0), b.output(0)});
  b.set_grad(0, b.emit1("Add", {dy, b.emit1("Mul", {dy, square})}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::tan(x); });
}

struct Tan {
  static bool vector_fits(float x) { return !(__builtin_fabsf(x) > kMostTurned); }
  static float elsewhere(float x) { return std::tan(x); }
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::tan(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples(squashed(1.25));
  list.push_back(extreme_sample());
  list.push_back({.name = "many_turns",
                  .inputs = {{DType::kFloat32, {4}}},
                  .fill = fill_with(0, {1e6, -3e9, 5e20, 1}),
                  .check_grad = false});
  return list;
}

}  // namespace

void add_tan(Registry& registry) {
  registry.add(pointwise({.name = "Tan",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Tan>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
