// BitwiseOr: y = a | b, bit by bit, of integers, broadcast. No gradient.
// https://onnx.ai/onnx/operators/onnx__BitwiseOr.html
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double a, double b) {
    return static_cast<double>(static_cast<int64_t>(a) | static_cast<int64_t>(b));
  });
}

struct BitwiseOr {
  template <typename T>
  OFSDP_INLINE T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};

}  // namespace

void add_bitwise_or(Registry& registry) {
  registry.add(pointwise({.name = "BitwiseOr",
                          .min_inputs = 2,
                          .first_opset = 18,
                          .reference = reference,
                          .cpu = binary_kernels<BitwiseOr, kIntegerTypes>(),
                          .samples = [] { return samples_of_types(kIntegerTypes); }}));
}

}  // namespace ofsdp::kernels::ops
