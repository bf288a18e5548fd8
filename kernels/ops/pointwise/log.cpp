// Log: y = ln x. dx = dy / x.
// https://onnx.ai/onnx/operators/onnx__Log.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { b.set_grad(0, b.emit1("Div", {b.grad_output(0), b.input(0)})); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::log(x); });
}

struct Log {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::log(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples(positive_fill(0.25));
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_log(Registry& registry) {
  registry.add(pointwise({.name = "Log",
                          .first_opset = 13,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Log>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
