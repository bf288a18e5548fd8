// Sign: y = 1 where x > 0, -1 where x < 0, 0 at 0. NaN stays NaN. dx = 0. Of all numbers.
// https://onnx.ai/onnx/operators/onnx__Sign.html
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : x; });
}

struct Sign {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    const T below = std::is_signed_v<T> && x < T{0} ? static_cast<T>(-1) : x;
    return x > T{0} ? T{1} : below;
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  append(list, vectors_of_types(kIntegerTypes));
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_sign(Registry& registry) {
  registry.add(pointwise({.name = "Sign",
                          .first_opset = 13,
                          .grad = grad_is_zero,
                          .reference = reference,
                          .cpu = unary_kernels<Sign, kNumberTypes>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
