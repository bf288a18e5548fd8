// Div: y = a / b, broadcast; integers are cut towards 0. da = dy / b, db = -dy y / b, each summed
// over what was broadcast. An integer divided by 0 is an error of the data.
// https://onnx.ai/onnx/operators/onnx__Div.html
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/integer_math.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref scaled = b.emit1("Div", {b.grad_output(0), b.input(1)});
  if (b.needs_grad(0)) b.set_grad(0, b.sum_to(scaled, b.input(0)));
  if (!b.needs_grad(1)) return;
  const Ref product = b.emit1("Mul", {scaled, b.output(0)});
  b.set_grad(1, b.emit1("Neg", {b.sum_to(product, b.input(1))}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const bool whole = is_integer(c.inputs[0].desc.dtype);
  return binary_reference(
      c, [whole](double a, double b) { return whole ? std::trunc(a / b) : a / b; });
}

OFSDP_MULTIARCH void div_floats(const BinaryRow<float>& row) {
  binary_row(row, [](float a, float b) { return a / b; });
}

// The smallest integer divided by -1 wraps; the processor would trap.
template <typename T>
T quotient(T a, T b) {
  if (b == -1) return wrapping(T{0}, a, [](auto p, auto q) { return p - q; });
  return a / b;
}

template <typename T>
void div_integers(const BinaryRow<T>& row) {
  binary_row(row, quotient<T>);
}

template <typename T>
std::unique_ptr<Kernel> create_integers(const Problem& p) {
  return make_kernel([loop = binary_loop(p), n = p.in(1).numel()](const KernelArgs& args) {
    for (int64_t i = 0; i < n; ++i) {
      if (args.in<T>(1)[i] == 0) return input_error("element {} of the integer divisor is 0", i);
    }
    run_binary<T, T, div_integers<T>>(loop, args);
    return ok_status();
  });
}

void away_from_zero(size_t input, std::vector<double>& values) {
  if (input != 1) return;
  for (double& v : values) v = v < 0 ? v - 1 : v + 1;
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = binary_samples(away_from_zero);
  append(list, binary_samples_of(DType::kInt64, away_from_zero));
  append(list, binary_samples_of(DType::kInt32, away_from_zero));
  return list;
}

}  // namespace

void add_div(Registry& registry) {
  registry.add({.name = "Div",
                .min_inputs = 2,
                .first_opset = 7,
                .infer = infer_binary,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts_binary<float>, create_binary<float, float, div_floats>},
                        {"int64", accepts_binary<int64_t>, create_integers<int64_t>},
                        {"int32", accepts_binary<int32_t>, create_integers<int32_t>}},
                .samples = samples,
                .inplace_inputs = {0, 1},
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
