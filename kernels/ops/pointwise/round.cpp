// Round: y is the whole number next to x, the even one of two. dx = 0.
// https://onnx.ai/onnx/operators/onnx__Round.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::nearbyint(x); });
}

struct Round {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::rint(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  list.push_back({.name = "halves",
                  .inputs = {{DType::kFloat32, {6}}},
                  .fill = fill_with(0, {0.5, 1.5, -0.5, -2.5, 2.5, 0.4999}),
                  .check_grad = false});
  return list;
}

}  // namespace

void add_round(Registry& registry) {
  registry.add(pointwise({.name = "Round",
                          .first_opset = 22,
                          .grad = grad_is_zero,
                          .reference = reference,
                          .cpu = unary_kernels<Round>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
