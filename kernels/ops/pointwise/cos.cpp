// Cos: y = cos x. dx = -dy sin x.
// https://onnx.ai/onnx/operators/onnx__Cos.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref slope = b.emit1("Neg", {b.emit1("Sin", {b.input(0)})});
  b.set_grad(0, b.emit1("Mul", {b.grad_output(0), slope}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::cos(x); });
}

struct Cos {
  static bool vector_fits(float x) { return !(__builtin_fabsf(x) > kMostTurned); }
  static float elsewhere(float x) { return std::cos(x); }
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::cos(x);
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

void add_cos(Registry& registry) {
  registry.add(pointwise({.name = "Cos",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Cos>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
