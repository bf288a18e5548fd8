// GlobalMaxPool: [N, C, spatial...] -> [N, C, 1...], the maximum over the spatial axes: MaxPool
// with one window that covers x. Output 1 is our own, asked for by the gradient: the winning tap,
// the first of equal ones. dx by ofsdp.MaxPoolGrad(dy, winners).
// https://onnx.ai/onnx/operators/onnx__GlobalMaxPool.html
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pool/max_pool_kernel.h"
#include "kernels/ops/pool/pool_shape.h"

namespace ofsdp::kernels::ops {
namespace {

Attributes window_of(const Shape& x) {
  return {{"kernel_shape", std::vector<int64_t>(x.axes().begin() + 2, x.axes().end())}};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  if (x.rank() < 3 || x.rank() > 5 || x.numel(2, x.rank()) == 0) {
    return input_error("expected [N, C, 1 to 3 spatial axes], found {}", c.inputs[0].text());
  }
  Shape y = x;
  for (int axis = 2; axis < y.rank(); ++axis) y[axis] = 1;
  return std::vector{TensorDesc{c.inputs[0].dtype, y},
                     TensorDesc{winner_dtype(x.numel(2, x.rank())), y}};
}

void grad(GradBuilder& b) {
  const Shape& x = b.desc(b.input(0)).shape;
  const Attributes window = window_of(x);
  b.set_grad(0, b.emit1("ofsdp.MaxPoolGrad", {b.grad_output(0), b.output(1)},
                        pool_attributes(window, known_pool(window, x), x)));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const std::vector<double>& x = c.inputs[0].values;
  RefTensor y{c.output_descs[0], {}}, winners{{}, {}};
  if (c.output_descs.size() > 1) winners.desc = c.output_descs[1];
  const auto size =
      static_cast<size_t>(c.inputs[0].desc.shape.numel(2, c.inputs[0].desc.shape.rank()));
  for (size_t at = 0; at < x.size(); at += size) {
    size_t best = 0;
    for (size_t k = 1; k < size; ++k) {
      if (x[at + k] > x[at + best]) best = k;
    }
    y.values.push_back(x[at + best]);
    winners.values.push_back(static_cast<double>(best));
  }
  return {y, winners};
}

// As MaxPool has it: no Indices, the winners as output 2.
Problem as_max_pool(const Problem& p) {
  Problem made = p;
  made.attributes = window_of(p.in(0).shape);
  made.outputs = {p.out(0), {}, p.has_out(1) ? p.out(1) : TensorDesc{}};
  made.outputs[0].layout = made.outputs[2].layout = p.in(0).layout;  // the same bytes
  return made;
}

bool accepts(const Problem& p) {
  return p.in(0).dtype == DType::kFloat32 || accepts_max_pool_loops(as_max_pool(p));
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Problem pool = as_max_pool(p);
  std::unique_ptr<Kernel> kernel =
      p.in(0).dtype == DType::kFloat32 ? make_max_pool(pool) : make_max_pool_loops(pool);
  std::vector<TensorView> views;
  for (const TensorDesc& desc : pool.outputs) views.push_back({nullptr, desc});
  return make_kernel([kernel = std::move(kernel), views](const KernelArgs& a) mutable {
    views[0].data = a.outputs[0].data;
    if (a.outputs.size() > 1) views[2].data = a.outputs[1].data;
    return kernel->run({a.inputs, views, a.workspace, a.step});
  });
}

std::vector<SampleCase> samples() {
  const auto sample = [](const char* name, DType dtype, Shape x) {
    return SampleCase{.name = name, .inputs = {{dtype, std::move(x)}}, .num_outputs = 2};
  };
  const DType f = DType::kFloat32;
  std::vector<SampleCase> cases = {
      sample("image", f, {2, 3, 5, 7}),           sample("wide", f, {2, 130, 7, 7}),
      sample("many_taps", f, {2, 3, 19, 17}),     sample("line", f, {2, 3, 11}),
      sample("volume", f, {2, 3, 4, 3, 5}),       sample("double", DType::kFloat64, {2, 3, 4, 3}),
      sample("half", DType::kFloat16, {2, 3, 4}), sample("empty", f, {0, 3, 5, 7})};
  cases.push_back(sample("y_only", f, {2, 3, 5, 7}));
  cases.back().num_outputs = 1;
  return cases;
}

}  // namespace

void add_global_max_pool(Registry& registry) {
  registry.add({.name = "GlobalMaxPool",
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts, create}, in_float32<accepts, create>()},
                .samples = samples,
                .layout = LayoutRule::kChannelsLast,
                .channels_last_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
