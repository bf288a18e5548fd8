// CumSum(x, axis), attributes exclusive, reverse: y_i = sum of x_k for k <= i along the axis (k < i
// when exclusive, k >= i when reverse). dx is the CumSum of dy in the other direction.
// https://onnx.ai/onnx/operators/onnx__CumSum.html
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/reduce/cumulative.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const int64_t reverse = b.attributes().i("reverse", 0) != 0 ? 0 : 1;
  b.set_grad(0, b.emit1("CumSum", {b.grad_output(0), b.input(1)},
                        {{"exclusive", b.attributes().i("exclusive", 0)}, {"reverse", reverse}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return cumulative_reference(c, 0, std::plus<>{});
}

constexpr auto create = create_cumulative<std::plus<>, 0>;

}  // namespace

void add_cumsum(Registry& registry) {
  registry.add(
      {.name = "CumSum",
       .min_inputs = 2,
       .first_opset = 11,
       .infer = infer_cumulative,
       .grad = grad,
       .reference = reference,
       .cpu = {{"lines", accepts_cumulative, create}, in_float32<accepts_cumulative, create>()},
       .samples = cumulative_samples,
       .inplace_inputs = {0},
       .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
