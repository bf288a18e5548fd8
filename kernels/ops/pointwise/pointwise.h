// The common parts of pointwise operators: their OpDefs from rows of tables, gradients of steps,
// references in double and sample cases. Their loops are in kernels/cpu/pointwise.h.
//
// Threads: any. Errors: kInput, with what the node got.
#pragma once

#include <optional>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/chain_steps.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// --- rows of tables ---

// Sample cases of an operator of one float input: unary_samples and some of the other float types.
struct UnarySamples {
  Fill fill = {};
  Attributes attributes = {};  // not empty: one more case has the defaults
  TypeSet vectors_of = 0;      // one vector for each type of the set
  bool extremes = true;        // zeros, infinities, NaN, tiny and huge numbers
  std::vector<SampleCase> more = {};
};

// ofsdp.NAMEGrad(dy, x), or of dy and y.
struct SlopeOp {
  ReferenceFn reference = nullptr;
  PointwiseLoops loops = {};
  bool of_output = false;
  StandardBody body = nullptr;
};

// An operator of one input. Its gradient is `slope`, with the node's attributes, or `grad`.
struct UnaryOp {
  const char* name = "";
  int first_opset = 1;
  ReferenceFn reference = nullptr;
  PointwiseLoops loops = {};
  UnarySamples samples = {};
  GradFn grad = nullptr;
  std::optional<SlopeOp> slope = std::nullopt;
};
void add_unary(Registry& registry, const UnaryOp& op);
// A row of a table: `rest` with these members.
UnaryOp unary_op(const char* name, int first_opset, ReferenceFn reference,
                 const PointwiseLoops& loops, UnaryOp rest = {});

// An operator of two inputs that broadcast; its samples have every type that it has a loop for.
struct BinaryOp {
  const char* name = "";
  int first_opset = 1;
  ReferenceFn reference = nullptr;
  PointwiseLoops loops = {};
  GradFn grad = nullptr;
  Fill fill = {};
};
void add_binary(Registry& registry, const BinaryOp& op);
BinaryOp binary_op(const char* name, int first_opset, ReferenceFn reference,
                   const PointwiseLoops& loops, BinaryOp rest = {});
OpDef binary(const BinaryOp& op);

// `op` completed: infer_same or infer_binary unless given (by min_inputs), any layout, in place of
// every input.
OpDef pointwise(OpDef op);
// The same for ofsdp.NAME(dy, x or y), which computes a gradient.
OpDef pointwise_grad(OpDef op);

// --- infer ---
Result<std::vector<TensorDesc>> infer_comparison(const InferContext& c);  // two of a type to bool
Result<std::vector<TensorDesc>> infer_predicate(const InferContext& c);   // one to bool

// --- grad ---
// dx = ofsdp.NAME(dy, x), or of dy and y, with the attributes of the node.
void grad_of_input(GradBuilder& b, const std::string& name);
void grad_of_output(GradBuilder& b, const std::string& name);
// Exact zeros of the shape of input 0: the gradient of steps.
void grad_is_zero(GradBuilder& b);

// --- references: f in double for each element ---
std::vector<RefTensor> map_x(const ReferenceContext& c, double (*f)(double, const Attributes&));
std::vector<RefTensor> map_ab(const ReferenceContext& c,
                              double (*f)(double, double, const Attributes&));
inline double number(const Attributes& a, const char* name, float otherwise) {
  return static_cast<double>(a.f(name, otherwise));
}

// As OpDef::reference: of_x<[](double x) { ... }>, or with `const Attributes& a` as the last
// argument.
template <auto f>
std::vector<RefTensor> of_x(const ReferenceContext& c) {
  if constexpr (std::is_invocable_v<decltype(f), double>) {
    return map_x(c, [](double x, const Attributes&) -> double { return f(x); });
  } else {
    return map_x(c, f);
  }
}
template <auto f>
std::vector<RefTensor> of_ab(const ReferenceContext& c) {
  if constexpr (std::is_invocable_v<decltype(f), double, double>) {
    return map_ab(c, [](double a, double b, const Attributes&) -> double { return f(a, b); });
  } else {
    return map_ab(c, f);
  }
}

// --- samples ---
SampleCase sample_of(DType dtype, std::string name, std::vector<Shape> shapes,
                     const Fill& fill = {});
// unary_samples and some of the other float types; `attributes` for all of them.
std::vector<SampleCase> float_samples(const Fill& fill = {}, const Attributes& attributes = {});
// The same for two inputs of one shape, as gradients take them.
std::vector<SampleCase> float_pair_samples(const Fill& fill = {},
                                           const Attributes& attributes = {});
// binary_samples and, for every type of the set (16-bit floats with float32), a pair and a row.
std::vector<SampleCase> samples_of_types(TypeSet types, const Fill& fill = {});
std::vector<SampleCase> vectors_of_types(TypeSet types, const Fill& fill = {});
SampleCase extreme_sample(const Attributes& attributes = {});  // without a gradient

Fill squashed(double limit);       // input 0 into -limit .. limit
Fill positive_fill(double least);  // every input |x| + least
Fill scaled(double factor);        // every input
std::vector<DType> types_in(TypeSet types);

}  // namespace ofsdp::kernels::ops
