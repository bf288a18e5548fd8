// Helpers of operator files: checks of infer functions, common gradients, indices of references,
// parts of standard bodies. References are the oracle of the tests, so their helpers are plain and
// share nothing with the kernels.
//
// Errors list the operands of the node.
#pragma once

#include <vector>

#include "kernels/core/op_def.h"
#include "kernels/core/standard_body.h"

namespace ofsdp::kernels::ops {

// --- registration ---
// The functions of an operator; null: none.
struct OpFunctions {
  InferFn infer;
  GradFn grad;
  ReferenceFn reference;
};
// Returns `rest` with these members.
OpDef make_op(std::string name, OpFunctions functions, std::vector<Implementation> cpu,
              OpDef rest = {});

// Returns `rest` for an operator that takes these operands channels last.
OpDef channels_last(std::vector<int> inputs, std::vector<int> outputs, OpDef rest = {});

// --- infer ---
// Returns the values of integer input i, which must be known while planning; `name` is ONNX's
// ("axes").
Result<std::vector<int64_t>> known_ints(const InferContext& c, size_t i, const char* name);

// Returns ONNX's axes as indices in rising order; refuses an axis outside the rank or named twice.
Result<std::vector<int>> unique_axes(const std::vector<int64_t>& axes, int rank);

// Returns the output of an operator with two broadcast inputs of one dtype, in the layout of the
// input with its shape.
Result<TensorDesc> infer_broadcast(const InferContext& c);
Result<std::vector<TensorDesc>> infer_same(const InferContext& c);  // output 0 is like input 0
Result<std::vector<TensorDesc>> infer_binary(
    const InferContext& c);  // infer_broadcast as an InferFn
// Output 0 has the type of input 0 and the shape that integer attribute `name` lists.
InferFn infer_shape_of(const char* name);
// Output k is like input inputs[k].
InferFn infer_like_inputs(std::vector<size_t> inputs);

// Returns the context in which infer saw a node, for its gradient or its problem.
InferContext context_of(const GradBuilder& b);
InferContext context_of(const Problem& p);

// --- accepts ---
Acceptance accepts_plain(const Problem& p);          // every operand in the plain layout
Acceptance accepts_plain_numbers(const Problem& p);  // input 0 of a type that is_number
Acceptance accepts_always(const Problem& p);
// Refuses for the reason of `rest`, else if there is no OpenBLAS. That check comes last because it
// loads the library.
Acceptance accept_with_blas(const Acceptance& rest);
Acceptance accepts_plain_with_blas(const Problem& p);

// --- grad ---
void grad_of_copy(GradBuilder& b);  // dx = dy
void no_grad(GradBuilder& b);       // nothing flows back
// `value` with the shape of `target`; a view.
Ref reshape_like(GradBuilder& b, Ref value, Ref target);
// The gradient of a view: the output's gradient in the shape of input 0.
void grad_of_view(GradBuilder& b);

// --- reference ---
RefTensor zeros(const TensorDesc& desc);
const RefTensor* given(const std::vector<RefTensor>& inputs, size_t i);  // null: absent
std::vector<TensorDesc> descs_of(const std::vector<RefTensor>& tensors);
std::vector<int64_t> unravel(const Shape& shape, int64_t flat);
// Returns the offset of `index` (of a broadcast result) in a row-major tensor of `shape`.
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

// --- standard bodies (kernels/core/standard_body.h) ---

// Adds dy into zeros that have `size` along `axis`, at `indices` of that axis. In dy the axes of
// `indices` replace that axis.
Ref scatter_along(BodyBuilder& b, Ref dy, Ref indices, int axis, int64_t size);

// Terms of the gradients of class losses, each with an axis of classes: one-hot labels, whether a
// label counts (0 or 1), and the weight (0 if it does not count).
struct LabelTerms {
  Ref one_hot, kept, weight;
};
LabelTerms label_terms(BodyBuilder& b, Ref labels, Ref weights, const TensorDesc& scores);
// Returns the class weights [C] as a factor of the scores.
Ref class_weights(BodyBuilder& b, Ref weights, const Shape& scores);
// Returns the factor of each label's gradient, from the loss's gradient and its reduction.
Ref label_scale(BodyBuilder& b, const LabelTerms& terms, Ref diff_loss);

}  // namespace ofsdp::kernels::ops
