// BitwiseNot: y = ~x, bit by bit, of integers. No gradient.
// https://onnx.ai/onnx/operators/onnx__BitwiseNot.html
#include <cmath>

#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y = unary_reference(c, [](double x) { return -1 - x; })[0];
  const auto bits = static_cast<int>(8 * dtype_size(y.desc.dtype));
  for (double& v : y.values) {
    if (y.desc.dtype >= DType::kUInt8) v += std::ldexp(1.0, bits);
  }
  return {y};
}

struct BitwiseNot {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return static_cast<T>(~x);
  }
};

std::vector<SampleCase> samples() { return vectors_of_types(kIntegerTypes); }

}  // namespace

void add_bitwise_not(Registry& registry) {
  registry.add(pointwise({.name = "BitwiseNot",
                          .first_opset = 18,
                          .infer = infer_same,
                          .reference = reference,
                          .cpu = unary_kernels<BitwiseNot, kIntegerTypes>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
