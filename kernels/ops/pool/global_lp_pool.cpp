// GlobalLpPool: [N, C, spatial...] -> [N, C, 1...], (sum of |x|^p)^(1/p) over the spatial axes:
// LpPool with one window that covers x; the gradient is ofsdp.LpPoolGrad of that (lp_pool.cpp).
// https://onnx.ai/onnx/operators/onnx__GlobalLpPool.html
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pool/lp_pool.h"

namespace ofsdp::kernels::ops {
namespace {

Attributes window_of(const Attributes& attributes, const Shape& x) {
  return {{"kernel_shape", std::vector<int64_t>(x.axes().begin() + 2, x.axes().end())},
          {"p", attributes.i("p", 2)}};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  if (x.rank() < 3 || x.rank() > 5 || x.numel(2, x.rank()) == 0) {
    return input_error("expected [N, C, 1 to 3 spatial axes], found {}", c.inputs[0].text());
  }
  Shape y = x;
  for (int axis = 2; axis < y.rank(); ++axis) y[axis] = 1;
  return std::vector{TensorDesc{c.inputs[0].dtype, y}};
}

void grad(GradBuilder& b) { grad_lp_pool(b, window_of(b.attributes(), b.desc(b.input(0)).shape)); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return reference_lp_pool(c, window_of(c.attributes, c.inputs[0].desc.shape));
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_lp_pool(p, window_of(p.attributes, p.in(0).shape));
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  return {{.name = "image", .inputs = {{f, {2, 3, 5, 7}}}},
          {.name = "cubes", .attributes = {{"p", int64_t{3}}}, .inputs = {{f, {2, 3, 11}}}},
          {.name = "double", .inputs = {{DType::kFloat64, {2, 3, 4, 3, 2}}}},
          {.name = "empty", .inputs = {{f, {0, 3, 5, 7}}}}};
}

}  // namespace

void add_global_lp_pool(Registry& registry) {
  registry.add({.name = "GlobalLpPool",
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts_lp_pool, create}, in_float32<accepts_lp_pool, create>()},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
