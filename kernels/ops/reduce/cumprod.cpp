// CumProd(x, axis), attributes exclusive, reverse: y_i = product of x_k for k <= i along the axis
// (k < i when exclusive, k >= i when reverse). No gradient.
// https://onnx.ai/onnx/operators/onnx__CumProd.html
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/reduce/cumulative.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return cumulative_reference(c, 1, std::multiplies<>{});
}

constexpr auto create = create_cumulative<std::multiplies<>, 1>;

}  // namespace

void add_cumprod(Registry& registry) {
  registry.add(
      {.name = "CumProd",
       .min_inputs = 2,
       .first_opset = 26,
       .infer = infer_cumulative,
       .reference = reference,
       .cpu = {{"lines", accepts_cumulative, create}, in_float32<accepts_cumulative, create>()},
       .samples = cumulative_samples,
       .inplace_inputs = {0},
       .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
