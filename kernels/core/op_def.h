// OpDef: everything the program knows about one operator. Each is in one file of kernels/ops, alone
// or with related operators, in this order: formula and derivative as a comment; infer; grad; a
// reference in double; the implementations, best first. kernels/ops/operators.inc has a row for
// each family. tests/ops/samples/ROOM.txt has the test cases.
//
//   infer      dtypes and shapes of the outputs from the inputs (values of constant
//              inputs included); errors say the operands found, the importer adds file and node
//   grad       emits backward nodes through a GradBuilder, so kernels know no graph; null: none
//   body       the operator in operators of the ONNX standard (kernels/core/standard_body.h), for
//              operators of our own that are written to files; null: none
//   reference  the definition again, in double and with plain loops: the oracle of the tests
//   cpu        implementations; empty only for views (`view`: output 0 has input 0's bytes)
//
// Operators of our own (gradients, mostly) have the domain "ofsdp". Semantics follow the newest
// ONNX opset: the importer converts older files up.
//
// The Registry owns OpDefs; they are immutable once registered.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/kernel.h"

namespace ofsdp::kernels {

inline constexpr const char* kOwnDomain = "ofsdp";

struct InferContext {
  Attributes attributes;
  std::vector<TensorDesc> inputs;      // not present(): absent
  std::vector<ConstantPtr> constants;  // value of an input if known, else null
  std::vector<bool> wanted;            // per output of the node: does it have a name

  bool has(size_t i) const { return i < inputs.size() && inputs[i].present(); }
  const Constant* constant(size_t i) const {
    return i < constants.size() ? constants[i].get() : nullptr;
  }
};
// Returns a desc per output; a desc that is not wanted may be left not present().
using InferFn = std::function<Result<std::vector<TensorDesc>>(const InferContext&)>;

// A value in the graph under construction; 0 is none.
struct Ref {
  int id = 0;
  explicit operator bool() const { return id != 0; }
};

// Builds a graph of operators while planning; values are Refs.
//
// Hands out copies: a reference into a graph that grows would be good until the next emit, and C++
// does not even fix whether that comes before or after.
class GraphBuilder {
 public:
  virtual ~GraphBuilder() = default;
  virtual Attributes attributes() const = 0;  // of the node that asks
  virtual Ref input(size_t i) const = 0;      // none if absent
  virtual TensorDesc desc(Ref ref) const = 0;
  // Emits a node and returns its outputs. Without a dot in `op` it has the default domain;
  // "ofsdp.Name" is our own.
  virtual std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                                const Attributes& attributes, size_t num_outputs) = 0;
  virtual Ref constant(ConstantPtr value) = 0;
  virtual void fail(Status status) = 0;  // ends the pass

  Ref emit1(const std::string& op, const std::vector<Ref>& inputs,
            const Attributes& attributes = {}) {
    return emit(op, inputs, attributes, 1)[0];
  }
  Ref ints(const std::vector<int64_t>& values);  // an int64 constant of one axis
  Ref scalar(DType dtype, double value);         // a constant of rank 0
  Ref like(Ref ref, double value) { return scalar(desc(ref).dtype, value); }

  // REQUIRES: at most one argument of a call emits nodes itself. C++ does not fix the order in
  // which arguments are evaluated, and nodes are ordered as they are emitted.
  Ref add(Ref a, Ref b) { return emit1("Add", {a, b}); }
  Ref sub(Ref a, Ref b) { return emit1("Sub", {a, b}); }
  Ref mul(Ref a, Ref b) { return emit1("Mul", {a, b}); }
  Ref mul(Ref a, double b) { return emit1("Mul", {a, like(a, b)}); }
  Ref div(Ref a, Ref b) { return emit1("Div", {a, b}); }
  Ref neg(Ref a) { return emit1("Neg", {a}); }
  Ref where(Ref condition, Ref a, Ref b) { return emit1("Where", {condition, a, b}); }
  Ref sum(Ref a, const std::vector<int64_t>& axes);  // keeps the axes
  Ref reshape(Ref a, const Shape& shape);            // `a` itself where it has that shape
  Ref transpose(Ref a, const std::vector<int64_t>& order);
  Ref slice(Ref a, int64_t axis, int64_t begin, int64_t end);
  Ref cast(Ref a, DType dtype);  // `a` itself where it has that type
};

class GradBuilder : public GraphBuilder {
 public:
  virtual size_t num_inputs() const = 0;
  virtual Ref output(size_t i) = 0;             // asks the node for it even if the file does not
  virtual Ref grad_output(size_t i) const = 0;  // none if no gradient reaches that output
  virtual bool needs_grad(size_t i) const = 0;  // whether set_grad(i) is of any use
  virtual ConstantPtr constant_value(Ref ref) const = 0;  // null if not known while planning
  virtual void set_grad(size_t input, Ref grad) = 0;

  // `grad` summed over the axes along which `target` was broadcast; the shape of `target`.
  Ref sum_to(Ref grad, Ref target);
};
using GradFn = std::function<void(GradBuilder&)>;

class BodyBuilder;
using StandardBody = void (*)(BodyBuilder&);

// A tensor of the reference implementations: any dtype's values as doubles.
struct RefTensor {
  TensorDesc desc;
  std::vector<double> values;

  double& operator[](int64_t i) { return values[static_cast<size_t>(i)]; }
  double operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
};
struct ReferenceContext {
  Attributes attributes;
  std::vector<RefTensor> inputs;
  std::vector<TensorDesc> output_descs;  // as inferred
  uint64_t node_seed = 0;
  StepContext step;
};
using ReferenceFn = std::vector<RefTensor> (*)(const ReferenceContext&);

// How an operator takes channels-last operands.
enum class LayoutRule {
  kPlain,         // every operand plain
  kElementwise,   // any layout, the same for all operands of the output's shape, but scalars
  kChannelsLast,  // the operands named in channels_last_inputs/outputs, if they have 4 axes
};

struct OpDef {
  std::string domain = {};  // "" is ai.onnx
  std::string name = {};
  int min_inputs = 1;
  int first_opset = 1;  // of ai.onnx: where this meaning starts; older files are converted up
  int last_opset = 0;   // of a plug-in's domain: where it ends; 0: it does not
  InferFn infer = nullptr;
  GradFn grad = nullptr;
  StandardBody body = nullptr;
  ReferenceFn reference = nullptr;
  std::vector<Implementation> cpu = {};

  bool view = false;                     // output 0 is input 0 with another shape
  bool shape_only = false;               // depends on the shapes of the inputs only: always folded
  bool random = false;                   // depends on seed, step and sample: never folded
  bool float32_only = false;             // stays in float32 if the run computes in less
  std::vector<int> inplace_inputs = {};  // inputs whose bytes one output may overwrite:
  int inplace_output = 0;                // this one
  LayoutRule layout = LayoutRule::kPlain;
  std::vector<int> channels_last_inputs = {};
  std::vector<int> channels_last_outputs = {};
  std::vector<int> constant_inputs = {};  // inputs that must be known while planning
  // Inputs that matter at run time but carry no gradient (labels, indices) need nothing here: grad
  // simply sets none.

  std::string full_name() const { return domain.empty() ? name : domain + "." + name; }
};

}  // namespace ofsdp::kernels
