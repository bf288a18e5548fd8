// ReduceMean(x, axes): the mean over the axes; see reduce_axes.h for the attributes. dx = dy / n
// stretched over the n elements of each mean. https://onnx.ai/onnx/operators/onnx__ReduceMean.html
#include <limits>

#include "kernels/ops/operators.h"
#include "kernels/ops/reduce/reduce_axes.h"

namespace ofsdp::kernels::ops {
namespace {

// Elements of one mean.
double count_of(const Shape& shape, const std::vector<bool>& reduced) {
  double count = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (reduced[static_cast<size_t>(axis)]) count *= static_cast<double>(shape[axis]);
  }
  return count;
}

void grad(GradBuilder& b) {
  const double count = count_of(b.desc(b.input(0)).shape, reduced_axes(b));
  const Ref dy = b.grad_output(0);
  const Ref scale = b.scalar(b.desc(dy).dtype, count == 0 ? 0 : 1 / count);
  b.set_grad(0, expand_reduced(b, b.emit1("Mul", {dy, scale})));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto outputs = static_cast<size_t>(c.output_descs[0].numel());
  RefTensor y{c.output_descs[0], std::vector<double>(outputs)};
  std::vector<double> counts(outputs);
  reference_reduce(c, [&](size_t x, size_t at) {
    y.values[at] += c.inputs[0].values[x];
    counts[at] += 1;
  });
  for (size_t i = 0; i < outputs; ++i) y.values[i] /= counts[i];
  return {y};
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const auto reduced = reduced_axes(p);
  const double count = count_of(p.in(0).shape, reduced);
  const float scale = count == 0 ? std::numeric_limits<float>::quiet_NaN()
                                 : static_cast<float>(1 / count);  // no elements have no mean
  return make_kernel(
      [sum = Reduction(p.in(0).shape, reduced, ReduceKind::kSum), scale](const KernelArgs& a) {
        sum.run(a.in<float>(0), a.out<float>(0), scale);
        return ok_status();
      });
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = reduce_samples(false);
  append(list, reduce_samples_of({DType::kFloat64, DType::kFloat16, DType::kBFloat16}));
  return list;
}

}  // namespace

void add_reduce_mean(Registry& registry) {
  registry.add({.name = "ReduceMean",
                .first_opset = 18,
                .infer = infer_reduce,
                .grad = grad,
                .reference = reference,
                .cpu = reduce_kernels<create, MeanFold>(),
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
