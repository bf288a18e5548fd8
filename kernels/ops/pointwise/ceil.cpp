// Ceil: y is the smallest whole number >= x. dx = 0.
// https://onnx.ai/onnx/operators/onnx__Ceil.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::ceil(x); });
}

struct Ceil {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::ceil(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_ceil(Registry& registry) {
  registry.add(pointwise({.name = "Ceil",
                          .first_opset = 13,
                          .grad = grad_is_zero,
                          .reference = reference,
                          .cpu = unary_kernels<Ceil>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
