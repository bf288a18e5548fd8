// What the reductions (ReduceSum, ReduceMax, ...) share: their axes, output shape, kernels (from
// kernels/cpu/reduce.h and fold.h), gradients and samples. ONNX: input `axes` (optional) names
// them, keepdims (1) keeps them as 1; without axes everything is reduced, or nothing when
// noop_with_empty_axes is 1. Ownership: values. Threads: any. Errors: kInput from infer; the other
// functions take what infer accepted.
#pragma once

#include "kernels/cpu/fold.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/reduce.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

Result<std::vector<TensorDesc>> infer_reduce(const InferContext& c);

// Per axis of the input whether it is reduced. `axes` null: absent.
std::vector<bool> reduced_axes(const Shape& shape, const std::vector<int64_t>& axes,
                               const Attributes& attributes);
std::vector<bool> reduced_axes(const Problem& p);
std::vector<bool> reduced_axes(const GradBuilder& b);

// f(element of the input, element of the output), rising in the input.
void reference_reduce(const ReferenceContext& c, const std::function<void(size_t, size_t)>& f);

// `value` (of the output's shape) stretched over what was reduced.
Ref expand_reduced(GradBuilder& b, Ref value);

// `value` (of the output's shape) with a 1 for each reduced axis, so that it broadcasts to input 0.
Ref keep_reduced(GradBuilder& b, Ref value);

// The rest of a reference: y[at] = finish(y[at]).
template <typename F>
std::vector<RefTensor> finished(RefTensor y, const F& finish) {
  for (double& v : y.values) v = finish(v);
  return {y};
}
// y[at] = join(y[at], x[i]), from `start`.
template <typename F>
RefTensor reference_fold(const ReferenceContext& c, double start, const F& join) {
  RefTensor y{c.output_descs[0], {}};
  y.values.assign(static_cast<size_t>(y.desc.numel()), start);
  reference_reduce(
      c, [&](size_t x, size_t at) { y.values[at] = join(y.values[at], c.inputs[0].values[x]); });
  return y;
}

// --- kernels ---
inline bool reduces_floats(const Problem& p) {
  return p.in(0).dtype == DType::kFloat32 && p.all_plain();
}
// float32, then f(y) for each output.
template <ReduceKind kind, float (*finish)(float) = nullptr>
std::unique_ptr<Kernel> create_reduction(const Problem& p) {
  const Reduction reduction(p.in(0).shape, reduced_axes(p), kind);
  return make_kernel([reduction, n = p.out(0).numel()](const KernelArgs& a) {
    float* y = a.out<float>(0);
    reduction.run(a.in<float>(0), y);
    if constexpr (finish != nullptr) {
      for (int64_t i = 0; i < n; ++i) y[i] = finish(y[i]);
    }
    return ok_status();
  });
}
inline bool reduces_numbers(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  return p.all_plain() && (is_integer(dtype) || dtype == DType::kFloat64);
}
template <typename Fold>
std::unique_ptr<Kernel> create_loops(const Problem& p) {
  return create_fold<Fold>(p.in(0).dtype, p.in(0).shape, reduced_axes(p));
}
// float32, the 16-bit floats, then every other number.
template <auto create, typename Fold>
std::vector<Implementation> reduce_kernels() {
  return {{"blocks", reduces_floats, create},
          in_float32<reduces_floats, create>(),
          {"loops", reduces_numbers, create_loops<Fold>}};
}

std::vector<SampleCase> reduce_samples(bool empty_sums = true);
// The dtypes beside float32: name, and a small problem.
std::vector<SampleCase> reduce_samples_of(std::vector<DType> dtypes);

}  // namespace ofsdp::kernels::ops
