// Sin: y = sin x. dx = dy cos x.
// https://onnx.ai/onnx/operators/onnx__Sin.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("Mul", {b.grad_output(0), b.emit1("Cos", {b.input(0)})}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::sin(x); });
}

struct Sin {
  static bool vector_fits(float x) { return !(__builtin_fabsf(x) > kMostTurned); }
  static float elsewhere(float x) { return std::sin(x); }
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::sin(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  list.push_back({.name = "many_turns",
                  .inputs = {{DType::kFloat32, {4}}},
                  .fill = fill_with(0, {1e6, -3e9, 5e20, 1}),
                  .check_grad = false});
  return list;
}

}  // namespace

void add_sin(Registry& registry) {
  registry.add(pointwise({.name = "Sin",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Sin>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
