// What ReduceSum, ReduceMean, ReduceMax share: their axes, output shape and problem for
// kernels/cpu/reduce.h. ONNX: input `axes` (optional) names them, keepdims (1) keeps them as 1;
// without axes everything is reduced, or nothing when noop_with_empty_axes is 1. Ownership: values.
// Threads: any. Errors: kInput from infer; the other functions take what infer accepted.
#pragma once

#include "kernels/cpu/reduce.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {

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

std::vector<SampleCase> reduce_samples(bool empty_sums = true);

}  // namespace ofsdp::ops
