// IsNaN: y is whether x is not a number, as bool. No gradient.
// https://onnx.ai/onnx/operators/onnx__IsNaN.html
#include <cmath>

#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::isnan(x) ? 1.0 : 0.0; });
}

struct IsNaN {
  template <typename T>
  OFSDP_INLINE bool operator()(T x) const {
    return x != x;
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_is_nan(Registry& registry) {
  registry.add(pointwise({.name = "IsNaN",
                          .first_opset = 9,
                          .infer = infer_predicate,
                          .reference = reference,
                          .cpu = unary_kernels<IsNaN, kFloatTypes>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
