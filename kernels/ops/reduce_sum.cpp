// ReduceSum(x, axes): the sum over the axes; see reduce_axes.h for the attributes. dx = dy
// stretched over what was summed. int64 and int32, which computations of shapes use, wrap.
// https://onnx.ai/onnx/operators/onnx__ReduceSum.html
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/integer_math.h"
#include "kernels/ops/list.h"
#include "kernels/ops/reduce_axes.h"

namespace ofsdp::ops {
namespace {

void grad(GradBuilder& b) { b.set_grad(0, expand_reduced(b, b.grad_output(0))); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0],
              std::vector<double>(static_cast<size_t>(c.output_descs[0].numel()))};
  reference_reduce(c, [&](size_t x, size_t at) { y.values[at] += c.inputs[0].values[x]; });
  return {y};
}

bool accepts(const Problem& p) { return p.in(0).dtype == DType::kFloat32 && p.all_plain(); }

std::unique_ptr<Kernel> create(const Problem& p) {
  Reduction sum(p.in(0).shape, reduced_axes(p), ReduceKind::kSum);
  return make_kernel([sum](const KernelArgs& a) {
    sum.run(a.in<float>(0), a.out<float>(0));
    return ok_status();
  });
}

template <typename T>
bool accepts_integers(const Problem& p) {
  return p.in(0).dtype == dtype_of<T>() && p.all_plain();
}

// Few elements: one after the other, y walked with stride 0 along what is summed.
template <typename T>
std::unique_ptr<Kernel> create_integers(const Problem& p) {
  const auto reduced = reduced_axes(p);
  Shape kept = p.in(0).shape;
  for (int axis = 0; axis < kept.rank(); ++axis) {
    if (reduced[static_cast<size_t>(axis)]) kept[axis] = 1;
  }
  const StridedLoop loop(p.in(0).shape, {broadcast_strides({p.in(0).dtype, kept}, p.in(0).shape),
                                         strides_of(p.in(0))});
  return make_kernel([loop, n = p.out(0).numel()](const KernelArgs& a) {
    T* y = a.out<T>(0);
    std::fill_n(y, n, T{0});
    loop.for_rows(0, loop.rows(), [&](const StridedLoop::Offsets& at) {
      for (int64_t i = 0; i < loop.inner(); ++i) {
        T& sum = y[at[0] + i * loop.inner_stride(0)];
        sum = wrapping(sum, a.in<T>(0)[at[1] + i], [](auto p, auto q) { return p + q; });
      }
    });
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = reduce_samples();
  list.push_back({.name = "longs", .inputs = {{DType::kInt64, {3, 4}}}});
  list.push_back({.name = "ints",
                  .attributes = {{"keepdims", int64_t{0}}},
                  .inputs = {{DType::kInt32, {3, 4}}, {DType::kInt64, {1}}},
                  .fill = fill_with(1, {0}),
                  .constant_inputs = {1}});
  return list;
}

}  // namespace

void add_reduce_sum(Registry& registry) {
  registry.add({.name = "ReduceSum",
                .first_opset = 13,
                .infer = infer_reduce,
                .grad = grad,
                .reference = reference,
                .cpu = {{"blocks", accepts, create},
                        {"int64", accepts_integers<int64_t>, create_integers<int64_t>},
                        {"int32", accepts_integers<int32_t>, create_integers<int32_t>}},
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::ops
