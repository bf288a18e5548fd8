// IsInf, attributes detect_positive (1) and detect_negative (1): y is whether x is an infinity of a
// sign that counts, as bool. No gradient.
// https://onnx.ai/onnx/operators/onnx__IsInf.html
#include <cmath>
#include <limits>

#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const bool positive = c.attributes.i("detect_positive", 1) != 0;
  const bool negative = c.attributes.i("detect_negative", 1) != 0;
  return unary_reference(
      c, [=](double x) { return std::isinf(x) && (x > 0 ? positive : negative) ? 1.0 : 0.0; });
}

struct IsInf {
  bool positive, negative;
  explicit IsInf(const Attributes& a)
      : positive(a.i("detect_positive", 1) != 0), negative(a.i("detect_negative", 1) != 0) {}
  template <typename T>
  OFSDP_INLINE bool operator()(T x) const {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    const bool above = x == kInfinity, below = x == -kInfinity;
    return (positive & above) | (negative & below);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  list.push_back(extreme_sample({{"detect_positive", int64_t{0}}}));
  list.push_back(extreme_sample({{"detect_negative", int64_t{0}}}));
  return list;
}

}  // namespace

void add_is_inf(Registry& registry) {
  registry.add(pointwise({.name = "IsInf",
                          .first_opset = 10,
                          .infer = infer_predicate,
                          .reference = reference,
                          .cpu = unary_kernels<IsInf, kFloatTypes>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
