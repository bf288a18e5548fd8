// GlobalAveragePool: [N, C, spatial...] -> [N, C, 1...], the mean over the spatial axes.
// dx = dy / n stretched over the n elements of each mean.
// https://onnx.ai/onnx/operators/onnx__GlobalAveragePool.html
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/reduce.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

int64_t spatial_size(const Shape& x) { return x.numel(2, x.rank()); }

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  TensorDesc y{c.inputs[0].dtype, c.inputs[0].shape};
  if (y.shape.rank() < 3 || spatial_size(y.shape) == 0) {
    return input_error("expected [N, C, spatial...], found {}", y.text());
  }
  for (int axis = 2; axis < y.shape.rank(); ++axis) y.shape[axis] = 1;
  return std::vector{y};
}

void grad(GradBuilder& b) {
  const TensorDesc& x = b.desc(b.input(0));
  const Ref scale = b.scalar(x.dtype, 1.0 / static_cast<double>(spatial_size(x.shape)));
  const Ref shape = b.ints(x.shape.axes());
  b.set_grad(0, b.emit1("Expand", {b.emit1("Mul", {b.grad_output(0), scale}), shape}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const int64_t size = spatial_size(c.inputs[0].desc.shape);
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    double sum = 0;
    for (int64_t k = 0; k < size; ++k) sum += c.inputs[0].values[static_cast<size_t>(i * size + k)];
    y.values.push_back(sum / static_cast<double>(size));
  }
  return {y};
}

bool accepts(const Problem& p) { return p.all_dtype(DType::kFloat32); }

// The bytes of y are the same in both layouts; those of x are [N, C, n] or [N, n, C].
std::unique_ptr<Kernel> create(const Problem& p) {
  const Shape& x = p.in(0).shape;
  const int64_t size = spatial_size(x);
  const bool last = p.in(0).layout == Layout::kChannelsLast;
  const Reduction sum(last ? Shape{x[0], size, x[1]} : Shape{x[0], x[1], size},
                      {false, last, !last}, ReduceKind::kSum);
  return make_kernel([sum, scale = 1.0f / static_cast<float>(size)](const KernelArgs& a) {
    sum.run(a.in<float>(0), a.out<float>(0), scale);
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  return {{.name = "image", .inputs = {{f, {2, 3, 5, 7}}}},
          {.name = "wide", .inputs = {{f, {2, 130, 7, 7}}}},
          {.name = "line", .inputs = {{f, {2, 3, 11}}}},
          {.name = "float16",
           .inputs = {{DType::kFloat16, {2, 3, 5, 7}}},
           .check_grad = false,
           .tolerance = 2e-3},
          {.name = "empty", .inputs = {{f, {0, 3, 5, 7}}}}};
}

}  // namespace

void add_global_average_pool(Registry& registry) {
  registry.add({.name = "GlobalAveragePool",
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"blocks", accepts, create}, in_float32<accepts, create>()},
                .samples = samples,
                .layout = LayoutRule::kChannelsLast,
                .channels_last_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
