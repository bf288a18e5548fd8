// The common parts of pointwise operators: OpDefs from table rows, gradients, references in double.
// The loops are in kernels/cpu/pointwise.h.
#pragma once

#include <optional>

#include "kernels/core/op_def.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// --- table rows ---

// The operator ofsdp.NAMEGrad(dy, x) or, if of_output, ofsdp.NAMEGrad(dy, y).
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
// Returns a table row: `rest` with these members set.
UnaryOp unary_op(const char* name, int first_opset, ReferenceFn reference,
                 const PointwiseLoops& loops, UnaryOp rest = {});

// An operator with two inputs that broadcast.
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

// Returns `op` for any layout, with infer_same or infer_binary (by min_inputs) unless it has an
// infer. The output may overwrite every input.
OpDef pointwise(OpDef op);
// The same for ofsdp.NAME(dy, x or y), which computes a gradient.
OpDef pointwise_grad(OpDef op);

// --- infer ---
Result<std::vector<TensorDesc>> infer_comparison(const InferContext& c);  // two of one type to bool
Result<std::vector<TensorDesc>> infer_predicate(const InferContext& c);   // one to bool

// --- grad ---
//
// dx = ofsdp.NAME(dy, x), or ofsdp.NAME(dy, y), with the node's attributes.
void grad_of_input(GradBuilder& b, const std::string& name);
void grad_of_output(GradBuilder& b, const std::string& name);
// Sets exact zeros in input 0's shape: the gradient of a step function.
void grad_is_zero(GradBuilder& b);

// --- references: call f in double for each element ---
std::vector<RefTensor> map_x(const ReferenceContext& c, double (*f)(double, const Attributes&));
std::vector<RefTensor> map_ab(const ReferenceContext& c,
                              double (*f)(double, double, const Attributes&));
inline double number(const Attributes& a, const char* name, float otherwise) {
  return static_cast<double>(a.f(name, otherwise));
}

// For OpDef::reference: of_x<[](double x) { ... }>; f may take `const Attributes& a` as last
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
