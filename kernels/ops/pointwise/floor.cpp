// Floor: y is the largest whole number <= x. dx = 0.
// https://onnx.ai/onnx/operators/onnx__Floor.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::floor(x); });
}

struct Floor {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::floor(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_floor(Registry& registry) {
  registry.add(pointwise({.name = "Floor",
                          .first_opset = 13,
                          .grad = grad_is_zero,
                          .reference = reference,
                          .cpu = unary_kernels<Floor>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
