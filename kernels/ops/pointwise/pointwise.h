// The common parts of pointwise operators: their OpDefs from rows of tables, gradients of steps,
// references in double. Their loops are in kernels/cpu/pointwise.h.
//
// Errors list the operands of the node.
#pragma once

#include <optional>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// --- rows of tables ---

// The operator ofsdp.NAMEGrad(dy, x) or (dy, y).
struct SlopeOp {
  ReferenceFn reference = nullptr;
  PointwiseLoops loops = {};
  bool of_output = false;
  StandardBody body = nullptr;
};

// An operator with one input. The gradient is `slope`, with the node's attributes, or `grad`.
struct UnaryOp {
  const char* name = "";
  int first_opset = 1;
  ReferenceFn reference = nullptr;
  PointwiseLoops loops = {};
  GradFn grad = nullptr;
  std::optional<SlopeOp> slope = std::nullopt;
};
void add_unary(Registry& registry, const UnaryOp& op);
// Returns a row of a table: `rest` with these members.
UnaryOp unary_op(const char* name, int first_opset, ReferenceFn reference,
                 const PointwiseLoops& loops, UnaryOp rest = {});

// An operator of two inputs that broadcast.
struct BinaryOp {
  const char* name = "";
  int first_opset = 1;
  ReferenceFn reference = nullptr;
  PointwiseLoops loops = {};
  GradFn grad = nullptr;
};
void add_binary(Registry& registry, const BinaryOp& op);
BinaryOp binary_op(const char* name, int first_opset, ReferenceFn reference,
                   const PointwiseLoops& loops, BinaryOp rest = {});
OpDef binary(const BinaryOp& op);

// Returns `op` with infer_same or infer_binary (by min_inputs) unless given, for any layout; the
// output may overwrite every input.
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

}  // namespace ofsdp::kernels::ops
