// What operator files of pointwise operators share beside their formulas (kernels/cpu/pointwise.h):
// the members of OpDef that are the same for all of them, gradients of a step, and sample cases.
//
// Ownership: values. Threads: any.
#pragma once

#include "kernels/cpu/pointwise.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// `op` completed: infer_same or infer_binary unless given (by min_inputs), any layout, in place of
// every input of the output's type.
OpDef pointwise(OpDef op);
// The same for ofsdp.NAME(dy, x or y), which computes a gradient.
OpDef pointwise_grad(OpDef op);

// --- infer ---
Result<std::vector<TensorDesc>> infer_comparison(const InferContext& c);  // two of a type to bool
Result<std::vector<TensorDesc>> infer_predicate(const InferContext& c);   // one to bool

// --- grad ---
// dx = ofsdp.NAME(dy, x), or of dy and y, with the attributes of the node.
void grad_of_input(GradBuilder& b, const char* name);
void grad_of_output(GradBuilder& b, const char* name);
// Exact zeros of the shape of input 0: the gradient of steps.
void grad_is_zero(GradBuilder& b);

// --- samples ---
SampleCase sample_of(DType dtype, std::string name, std::vector<Shape> shapes,
                     const Fill& fill = {});
// unary_samples and some of the other float types; `attributes` for all of them.
std::vector<SampleCase> float_samples(const Fill& fill = {}, const Attributes& attributes = {});
// The same for two inputs of one shape, as gradients take them.
std::vector<SampleCase> float_pair_samples(const Fill& fill = {},
                                           const Attributes& attributes = {});
// binary_samples and binary_samples_of all types of the set (16-bit floats with float32).
std::vector<SampleCase> samples_of_types(TypeSet types, const Fill& fill = {});
// One vector for each type of the set.
std::vector<SampleCase> vectors_of_types(TypeSet types, const Fill& fill = {});
// Zeros, infinities, NaN, tiny and huge numbers; without a gradient.
SampleCase extreme_sample(const Attributes& attributes = {});

Fill squashed(double limit);       // input 0 into -limit .. limit
Fill positive_fill(double least);  // every input |x| + least
std::vector<DType> types_in(TypeSet types);

}  // namespace ofsdp::kernels::ops
