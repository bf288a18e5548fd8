// OpDef: everything the program knows about an operator. A file under kernels/ops defines one
// operator or a family, in this order: formula and derivative as a comment; infer; grad; reference;
// implementations, best first. kernels/ops/operators.inc has one row per family,
// tests/ops/samples/ROOM.txt the test cases.
//
//   infer      output dtypes and shapes from the inputs (and the values of constant inputs); an
//              error names the operands, the importer adds file and node
//   grad       emits backward nodes through a GradBuilder, so kernels know no graph; null: none
//   body       the operator as standard ONNX operators (BodyBuilder), for our own operators
//              that are written to files; null: none
//   reference  the definition again, in double and plain loops, with which tests compare
//   cpu        implementations; empty only for views (`view`: output 0 has input 0's bytes)
//
// Our own operators (gradients, mostly) have the domain "ofsdp". Semantics follow the newest ONNX
// opset: the importer converts older files up. The Registry owns OpDefs; they never change once
// registered.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/kernel.h"

namespace ofsdp::kernels {

inline constexpr const char* kOwnDomain = "ofsdp";

struct InferContext {
  Attributes attributes;
  std::vector<TensorDesc> inputs;      // not present(): absent
  std::vector<ConstantPtr> constants;  // an input's value if known, else null
  std::vector<bool> wanted;            // per output: whether the node names it

  bool has(size_t i) const { return i < inputs.size() && inputs[i].present(); }
  const Constant* constant(size_t i) const {
    return i < constants.size() ? constants[i].get() : nullptr;
  }
};
// Returns one desc per output; the desc of an output that is not wanted may be not present().
using InferFn = std::function<Result<std::vector<TensorDesc>>(const InferContext&)>;

// A value in the graph under construction; 0: none.
struct Ref {
  int id = 0;
  explicit operator bool() const { return id != 0; }
};

// Builds a graph while planning; values are Refs.
//
// Methods return copies, since a reference into the growing graph would be valid only until the
// next emit, which may be in the same expression.
class GraphBuilder {
 public:
  virtual ~GraphBuilder() = default;
  virtual Attributes attributes() const = 0;  // those of the node for which the graph is built
  virtual Ref input(size_t i) const = 0;      // 0 if absent
  virtual TensorDesc desc(Ref ref) const = 0;
  // Emits a node and returns the outputs. Without a dot in `op` the domain is the default one;
  // "ofsdp.Name" is our own.
  virtual std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                                const Attributes& attributes, size_t num_outputs) = 0;
  virtual Ref constant(ConstantPtr value) = 0;
  virtual void fail(Status status) = 0;  // ends the pass

  Ref emit1(const std::string& op, const std::vector<Ref>& inputs,
            const Attributes& attributes = {}) {
    return emit(op, inputs, attributes, 1)[0];
  }
  Ref ints(const std::vector<int64_t>& values);  // int64, one axis
  Ref scalar(DType dtype, double value);         // rank 0
  Ref like(Ref ref, double value) { return scalar(desc(ref).dtype, value); }

  // REQUIRES: at most one argument in a call emits nodes. C++ does not fix the order in which it
  // evaluates arguments, and nodes are ordered as emitted.
  Ref add(Ref a, Ref b) { return emit1("Add", {a, b}); }
  Ref sub(Ref a, Ref b) { return emit1("Sub", {a, b}); }
  Ref mul(Ref a, Ref b) { return emit1("Mul", {a, b}); }
  Ref mul(Ref a, double b) { return emit1("Mul", {a, like(a, b)}); }
  Ref div(Ref a, Ref b) { return emit1("Div", {a, b}); }
  Ref neg(Ref a) { return emit1("Neg", {a}); }
  Ref where(Ref condition, Ref a, Ref b) { return emit1("Where", {condition, a, b}); }
  Ref sum(Ref a, const std::vector<int64_t>& axes);  // keeps the axes
  Ref reshape(Ref a, const Shape& shape);            // `a` itself if it has that shape
  Ref transpose(Ref a, const std::vector<int64_t>& order);
  Ref slice(Ref a, int64_t axis, int64_t begin, int64_t end);
  Ref cast(Ref a, DType dtype);  // `a` itself if it has that type
};

class GradBuilder : public GraphBuilder {
 public:
  virtual size_t num_inputs() const = 0;
  virtual Ref output(size_t i) = 0;             // requests the output even if the file omits it
  virtual Ref grad_output(size_t i) const = 0;  // 0 if no gradient reaches the output
  virtual bool needs_grad(size_t i) const = 0;  // whether set_grad(i) has a use
  virtual ConstantPtr constant_value(Ref ref) const = 0;  // null: unknown while planning
  virtual void set_grad(size_t input, Ref grad) = 0;

  // Sums `grad` over the axes that broadcast `target`; returns the shape of `target`.
  Ref sum_to(Ref grad, Ref target);
};
using GradFn = std::function<void(GradBuilder&)>;

class BodyBuilder;
using StandardBody = void (*)(BodyBuilder&);

// A reference implementation's tensor: values of any dtype as doubles.
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

// The operands of an attention over cached keys and values.
struct PastOperands {
  std::vector<int> inputs = {};   // the past, and operands that make sense only with one
  std::vector<int> outputs = {};  // the present
  size_t batch_axis = 0;          // of the past
  size_t rows_axis = 2;
};

// How an operator takes channels-last operands.
enum class LayoutRule {
  kPlain,         // every operand plain
  kElementwise,   // any layout, the same for all operands of the output's shape; not for scalars
  kChannelsLast,  // operands in channels_last_inputs/outputs, if they have 4 axes
};

struct OpDef {
  std::string domain = {};  // "" is ai.onnx
  std::string name = {};
  int min_inputs = 1;
  int first_opset = 1;  // in ai.onnx: this meaning's first opset; older files are converted up
  int last_opset = 0;   // in a plug-in's domain: the last opset; 0: none
  InferFn infer = nullptr;
  GradFn grad = nullptr;
  StandardBody body = nullptr;
  ReferenceFn reference = nullptr;
  std::vector<Implementation> cpu = {};

  bool view = false;          // output 0 is input 0 with another shape
  bool shape_only = false;    // depends only on input shapes: always folded
  bool random = false;        // depends on seed, step and sample: never folded
  bool float32_only = false;  // stays float32 if the run computes in less
  bool narrow_types = false;  // takes the narrow types (kernels/core/dtype.h)
  bool costly = false;        // recomputation saves the outputs if it can
  bool product = false;       // multiplies matrices: inputs 0 and 1 (transA, transB)
  bool reads_number = false;  // an input of one element is a bound, a fill or a choice
  bool joined = false;        // a pass joins nodes into it if a kernel accepts the result
  // Rounds input 0 by scale and zero point, inputs 1 and 2; the gradient passes straight through.
  bool fake_quantizes = false;
  // Above 0: rounds inside, and the gradient passes straight through. If its inputs have moved, the
  // reference takes this many, then as many unmoved ones, which fix the rounding.
  int rounding_inputs = 0;
  std::vector<int> inplace_inputs = {};  // inputs that one output may overwrite in place:
  int inplace_output = 0;                // this output
  LayoutRule layout = LayoutRule::kPlain;
  std::vector<int> channels_last_inputs = {};
  std::vector<int> channels_last_outputs = {};
  std::vector<int> constant_inputs = {};  // inputs that planning must know
  std::vector<int> float32_inputs = {};   // inputs that keep float32 if the run computes in less
  std::vector<int> stored_inputs = {};    // few-bit weights, scales, zero points; never trained
  std::vector<int> lookup_inputs = {};    // tables of rows that other inputs index
  std::vector<int> rotary_inputs = {};    // a rotary embedding's cosines and sines
  PastOperands past = {};
  // Inputs without gradient (labels, indices) need nothing here: grad sets none.

  std::string full_name() const { return domain.empty() ? name : domain + "." + name; }
};

// Builds an operator of our own from standard ONNX operators, so that a gradient graph can be
// written to a file that others read (fsdp-run make-training). OpDef::body does so for one problem:
// shapes and attributes are known. It may use standard operators, and our own if they have a body.
// If standard operators cannot express the problem, it calls `fail`.
class BodyBuilder : public GraphBuilder {
 public:
  virtual TensorDesc output_desc(size_t i) const = 0;  // not present(): not wanted
  virtual void set_output(size_t i, Ref ref) = 0;
  virtual ConstantPtr constant_value(Ref ref) const = 0;  // null: unknown while planning

  bool wants(size_t output) const { return output_desc(output).present(); }
};

// While planning, some operators become their bodies, with the gradients, kernels and fusions that
// the standard operators have: operators without a kernel, or without one for some attributes.

// Attribute on com.microsoft.NhwcConv and NhwcFusedConv: 1 if weights are [M, kernel..., C /
// group], 0 if [M, C / group, kernel...].
inline constexpr const char* kNhwcWeightsLast = "ofsdp_weights_last";

// Returns whether the body replaces every node: no kernel, and no view.
inline bool is_composite(const OpDef& op) {
  return op.body != nullptr && op.cpu.empty() && !op.view;
}

// Returns whether the body replaces a node with these attributes.
inline bool is_lowered(const OpDef& op, const Attributes& attributes) {
  if (op.body == nullptr || op.domain == kOwnDomain) return false;
  const bool transposed_batch =
      attributes.i("transBatchA", 0) != 0 || attributes.i("transBatchB", 0) != 0;
  return is_composite(op) || transposed_batch;  // com.microsoft.FusedMatMul
}

// The operators this process knows, by domain and name. kernels/ops/operators.cpp fills it,
// plug-ins add theirs; afterwards it never changes. main owns it; all others hold a const
// reference.
class Registry {
 public:
  void add(OpDef op);
  void add_own(OpDef op);  // in the domain "ofsdp"
  const OpDef* find(const std::string& domain, const std::string& name) const;  // null: unknown
  const OpDef& get(const std::string& full_name) const;  // aborts if unknown; "ofsdp.ReluGrad"
  const std::map<std::pair<std::string, std::string>, OpDef>& all() const { return ops_; }

 private:
  std::map<std::pair<std::string, std::string>, OpDef> ops_;
};

Registry make_registry();  // with all operators in kernels/ops

// Makes the best implementation that accepts the problem; if none does, the error names operator,
// problem and reasons. Unless null, `choice` receives the implementation taken and those refused.
Result<std::unique_ptr<Kernel>> create_kernel(const OpDef& op, const Problem& problem,
                                              KernelChoice* choice = nullptr);

// Returns whether a list of an OpDef names operand i.
inline bool has_operand(const std::vector<int>& list, size_t i) {
  return std::ranges::find(list, static_cast<int>(i)) != list.end();
}

}  // namespace ofsdp::kernels
