// Max: y = the largest of all inputs, broadcast, of all numbers; NaN if one is.
// dx = dy where x is y, shared evenly among the inputs that are, summed over what was broadcast.
// https://onnx.ai/onnx/operators/onnx__Max.html
#include <cmath>

#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/variadic.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return variadic_reference(c, [](const std::vector<double>& x) {
    double y = x[0];
    for (double v : x) y = std::isnan(v) || v > y ? v : y;
    return y;
  });
}

struct Max {
  template <typename T>
  OFSDP_INLINE T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

}  // namespace

void add_max(Registry& registry) {
  registry.add(variadic({.name = "Max",
                         .first_opset = 13,
                         .grad = grad_of_chosen,
                         .reference = reference,
                         .cpu = variadic_kernels<Max, kNumberTypes>(),
                         .samples = [] { return variadic_samples(kNumberTypes); }}));
}

}  // namespace ofsdp::kernels::ops
