// Helpers for operator files: infer checks, common gradients, indices for references, and parts of
// standard bodies. The tests use references as their oracle, so reference helpers are plain and
// share nothing with the kernels.
#pragma once

#include <vector>

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

// --- registration ---
//
// An operator's functions; null means none.
struct OpFunctions {
  InferFn infer;
  GradFn grad;
  ReferenceFn reference;
};
// Returns `rest` with these members set.
OpDef make_op(std::string name, OpFunctions functions, std::vector<Implementation> cpu,
              OpDef rest = {});

// Returns `rest` with a layout rule: the operator takes these operands channels last.
OpDef channels_last(std::vector<int> inputs, std::vector<int> outputs, OpDef rest = {});

// --- infer ---
//
// Returns the values in integer input i. Returns an error if they are not known while planning.
// `name` is ONNX's ("axes").
Result<std::vector<int64_t>> known_ints(const InferContext& c, size_t i, const char* name);

// Returns ONNX's axes as indices in rising order. Returns an error if an axis is outside the rank
// or named twice.
Result<std::vector<int>> unique_axes(const std::vector<int64_t>& axes, int rank);

// Returns the output desc for two broadcast inputs, in the layout of an input with that shape.
// Returns an error if the dtypes differ.
Result<TensorDesc> infer_broadcast(const InferContext& c);
Result<std::vector<TensorDesc>> infer_same(const InferContext& c);  // output 0 is like input 0
Result<std::vector<TensorDesc>> infer_binary(
    const InferContext& c);  // infer_broadcast as an InferFn
// Output 0 has input 0's dtype and the shape in the integer attribute `name`.
InferFn infer_shape_of(const char* name);
// Output k is like input inputs[k].
InferFn infer_like_inputs(std::vector<size_t> inputs);

// Returns the InferContext of a node, for its gradient or its problem.
InferContext context_of(const GradBuilder& b);
InferContext context_of(const Problem& p);

// --- accepts ---
Acceptance accepts_plain(const Problem& p);          // every operand in the plain layout
Acceptance accepts_plain_numbers(const Problem& p);  // input 0 satisfies is_number
Acceptance accepts_always(const Problem& p);
// Refuses for `rest`'s reason, or if there is no OpenBLAS. That check comes last because it loads
// the library.
Acceptance accept_with_blas(const Acceptance& rest);
Acceptance accepts_plain_with_blas(const Problem& p);

// --- grad ---
void grad_of_copy(GradBuilder& b);  // dx = dy
void no_grad(GradBuilder& b);       // nothing flows back
// Returns a view: `value` with `target`'s shape.
Ref reshape_like(GradBuilder& b, Ref value, Ref target);
// A view's gradient: the output's gradient in input 0's shape.
void grad_of_view(GradBuilder& b);

// --- reference ---
RefTensor zeros(const TensorDesc& desc);
const RefTensor* given(const std::vector<RefTensor>& inputs, size_t i);  // null if absent
std::vector<TensorDesc> descs_of(const std::vector<RefTensor>& tensors);
std::vector<int64_t> unravel(const Shape& shape, int64_t flat);
// Returns where element `index` of a broadcast result lies in a row-major tensor with `shape`.
size_t ravel_broadcast(const Shape& shape, const std::vector<int64_t>& index);
size_t ravel(const Shape& shape, const std::vector<int64_t>& index);
std::vector<RefTensor> reference_of_view(const ReferenceContext& c);

std::vector<RefTensor> unary_reference(const ReferenceContext& c, const auto& f) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  for (double& v : y.values) v = f(v);
  return {y};
}

std::vector<RefTensor> binary_reference(const ReferenceContext& c, const auto& f) {
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto index = unravel(y.desc.shape, i);
    y.values.push_back(f(c.inputs[0].values[ravel_broadcast(c.inputs[0].desc.shape, index)],
                         c.inputs[1].values[ravel_broadcast(c.inputs[1].desc.shape, index)]));
  }
  return {y};
}

// --- standard bodies (kernels/core/op_def.h) ---

// Gather's gradient: adds dy to zeros at `indices` along `axis`, which has `size` elements. In dy,
// the axes of `indices` replace `axis`.
Ref scatter_along(BodyBuilder& b, Ref dy, Ref indices, int axis, int64_t size);

// Terms in the gradients of class losses, each with a class axis: one-hot labels; `kept`, 1 if the
// label counts and else 0; `weight`, the label's class weight, 0 if it does not count.
struct LabelTerms {
  Ref one_hot, kept, weight;
};
LabelTerms label_terms(BodyBuilder& b, Ref labels, Ref weights, const TensorDesc& scores);
// Returns the class weights [C] in a shape that broadcasts to the scores.
Ref class_weights(BodyBuilder& b, Ref weights, const Shape& scores);
// Returns the factor of each label's gradient: the loss's gradient, divided by the total weight if
// the reduction is a mean (0 if the total is 0).
Ref label_scale(BodyBuilder& b, const LabelTerms& terms, Ref diff_loss);

}  // namespace ofsdp::kernels::ops
