// A plug-in's backward as known operators: ofsdp_graph before a GradBuilder.

#include <algorithm>
#include <set>

#include "plugins/loading/loader.h"

namespace ofsdp::plugins {
namespace {

// ofsdp_graph's `context` points to this. `status` holds the plug-in's first mistake; after it
// every function returns no value.
struct GraphCall {
  const PluginOperator& op;
  GradBuilder& builder;
  std::set<int> refs = {};
  std::set<size_t> given = {};
  Status status = {};

  int32_t hand(Ref ref) {
    if (ref) refs.insert(ref.id);
    return ref.id;
  }
  bool wrong(Status why) {
    if (status.ok()) status = std::move(why);
    return true;
  }
  // Returns whether `ref` is not a value that the plug-in received.
  bool bad(int32_t ref, const char* function) {
    if (!status.ok()) return true;
    return !refs.contains(ref) && wrong(input_error("the plug-in's build_backward passes {} to {}, "
                                                    "which is no value of the graph",
                                                    ref, function));
  }
};

GraphCall& call_of(const ofsdp_graph* graph) { return *static_cast<GraphCall*>(graph->context); }

int32_t input(const ofsdp_graph* graph, size_t i) {
  GraphCall& call = call_of(graph);
  return i < call.builder.num_inputs() ? call.hand(call.builder.input(i)) : 0;
}

int32_t output(const ofsdp_graph* graph, size_t i) {
  GraphCall& call = call_of(graph);
  return i < call.op.outputs.size() ? call.hand(call.builder.output(i)) : 0;
}

int32_t grad_output(const ofsdp_graph* graph, size_t i) {
  GraphCall& call = call_of(graph);
  return i < call.op.outputs.size() ? call.hand(call.builder.grad_output(i)) : 0;
}

int32_t needs_grad(const ofsdp_graph* graph, size_t i) {
  const GradBuilder& builder = call_of(graph).builder;
  return i < builder.num_inputs() && builder.needs_grad(i) ? 1 : 0;
}

int32_t emit(const ofsdp_graph* graph, const char* op, const int32_t* inputs, size_t num_inputs,
             const ofsdp_attribute* const* attributes, size_t num_attributes, int32_t* outputs,
             size_t num_outputs) {
  GraphCall& call = call_of(graph);
  std::fill(outputs, outputs + num_outputs, 0);
  if (std::ranges::find(*call.op.known, op) == call.op.known->end()) {
    call.wrong(
        input_error("the plug-in's build_backward uses '{}', which is no known operator", op));
    return OFSDP_ERROR;
  }
  std::vector<Ref> refs;
  for (size_t i = 0; i < num_inputs; ++i) {
    if (inputs[i] != 0 && call.bad(inputs[i], "emit")) return OFSDP_ERROR;
    refs.push_back({inputs[i]});
  }
  Attributes values;
  for (size_t i = 0; i < num_attributes; ++i) {
    const ofsdp_attribute attribute = whole(attributes[i]);
    values.set(attribute.name, attribute_of_plugin(attribute));
  }
  const std::vector<Ref> made = call.builder.emit(op, refs, values, num_outputs);
  for (size_t i = 0; i < num_outputs; ++i) outputs[i] = call.hand(made[i]);
  return OFSDP_OK;
}

int32_t scalar(const ofsdp_graph* graph, int32_t dtype, double value) {
  GraphCall& call = call_of(graph);
  const DType ours = dtype_from_onnx_number(dtype);
  if (!is_floating(ours)) {
    call.wrong(input_error("the plug-in's build_backward asks for a scalar of type {}", dtype));
    return 0;
  }
  return call.hand(call.builder.scalar(ours, value));
}

int32_t ints(const ofsdp_graph* graph, const int64_t* values, size_t count) {
  GraphCall& call = call_of(graph);
  return call.hand(call.builder.ints({values, values + count}));
}

int32_t sum_to(const ofsdp_graph* graph, int32_t grad, int32_t target) {
  GraphCall& call = call_of(graph);
  if (call.bad(grad, "sum_to") || call.bad(target, "sum_to")) return 0;
  return call.hand(call.builder.sum_to({grad}, {target}));
}

void set_grad(const ofsdp_graph* graph, size_t i, int32_t grad) {
  GraphCall& call = call_of(graph);
  if (needs_grad(graph, i) == 0 || call.bad(grad, "set_grad")) return;
  const TensorDesc& wanted = call.builder.desc(call.builder.input(i));
  const TensorDesc& found = call.builder.desc({grad});
  if (found != wanted) {
    call.wrong(input_error("the plug-in's gradient of input '{}' is {}, expected {}",
                           call.op.inputs[i].name, found.text(), wanted.text()));
    return;
  }
  if (!call.given.insert(i).second) {
    call.wrong(
        input_error("the plug-in sets the gradient of input '{}' twice", call.op.inputs[i].name));
    return;
  }
  call.builder.set_grad(i, {grad});
}

// Returns the descs for `count` values (b.*value)(i).
std::vector<TensorDesc> descs_of(const GradBuilder& b, size_t count,
                                 Ref (GradBuilder::*value)(size_t) const) {
  std::vector<TensorDesc> descs(count);
  for (size_t i = 0; i < count; ++i) {
    if (const Ref ref = (b.*value)(i)) descs[i] = b.desc(ref);
  }
  return descs;
}

Status missing_gradient(const GraphCall& call) {
  for (size_t i = 0; i < call.builder.num_inputs(); ++i) {
    const ofsdp_operand& input = call.op.inputs[i];
    if (!call.builder.needs_grad(i) || (input.flags & OFSDP_NO_GRADIENT) != 0) continue;
    if (call.given.contains(i)) continue;
    return input_error("the plug-in's build_backward gives no gradient of input '{}'", input.name);
  }
  return {};
}

}  // namespace

void build_backward(const PluginOperatorPtr& op, GradBuilder& builder) {
  PluginNode node(op, builder.attributes(),
                  descs_of(builder, builder.num_inputs(), &GradBuilder::input),
                  descs_of(builder, op->outputs.size(), &GradBuilder::grad_output));
  GraphCall call{*op, builder};
  const ofsdp_graph graph = {.struct_size = sizeof(ofsdp_graph),
                             .host = op->host,
                             .context = &call,
                             .node = &node.node(),
                             .input = input,
                             .output = output,
                             .grad_output = grad_output,
                             .needs_grad = needs_grad,
                             .emit = emit,
                             .scalar = scalar,
                             .ints = ints,
                             .sum_to = sum_to,
                             .set_grad = set_grad};
  Status status = node.call(ErrorKind::kInput, "build_backward",
                            [&] { return op->def.build_backward(&graph); });
  if (!call.status.ok()) status = std::move(call.status);
  if (status.ok()) status = missing_gradient(call);
  if (!status.ok()) builder.fail(std::move(status));
}

// A plug-in's backward as a kernel: the node that it becomes, and the Kernel that runs it.

namespace {

constexpr const char* kOperands = "ofsdp.operands";
constexpr const char* kWanted = "ofsdp.wanted";

bool saved(const ofsdp_operand& operand) { return (operand.flags & OFSDP_SAVED) != 0; }

// Every operand as numbers: dtype, rank, axes.
std::vector<int64_t> packed(const std::vector<TensorDesc>& descs) {
  std::vector<int64_t> numbers;
  for (const TensorDesc& desc : descs) {
    numbers.push_back(static_cast<int64_t>(desc.dtype));
    numbers.push_back(desc.shape.rank());
    for (const int64_t axis : desc.shape.axes()) numbers.push_back(axis);
  }
  return numbers;
}

struct BackwardProblem {
  std::vector<TensorDesc> inputs, outputs, grad_inputs;
  std::vector<size_t> wanted;
  Attributes attributes;  // the node's own
};

BackwardProblem unpacked(const PluginOperator& op, const Attributes& attributes) {
  BackwardProblem made;
  const std::vector<int64_t> numbers = attributes.ints(kOperands);
  std::vector<TensorDesc> all;
  for (size_t at = 0; at < numbers.size();) {
    const auto dtype = static_cast<DType>(numbers[at]);
    const auto begin = numbers.begin() + static_cast<int64_t>(at) + 2;
    all.push_back({dtype, Shape(std::vector<int64_t>(begin, begin + numbers[at + 1]))});
    at += 2 + static_cast<size_t>(numbers[at + 1]);
  }
  const auto split = all.begin() + static_cast<int64_t>(op.inputs.size());
  made.inputs.assign(all.begin(), split);
  made.outputs.assign(split, all.end());
  made.grad_inputs.resize(op.inputs.size());
  for (const int64_t i : attributes.ints(kWanted)) {
    made.wanted.push_back(static_cast<size_t>(i));
    made.grad_inputs[made.wanted.back()] = made.inputs[made.wanted.back()];
  }
  for (const auto& [name, value] : attributes.all()) {
    if (name != kOperands && name != kWanted) made.attributes.set(name, value);
  }
  return made;
}

class BackwardKernel final : public PluginKernel {
 public:
  BackwardKernel(const PluginOperatorPtr& op, const Problem& p)
      : BackwardKernel(op, p, unpacked(*op, p.attributes)) {}

 private:
  BackwardKernel(const PluginOperatorPtr& op, const Problem& p, const BackwardProblem& problem)
      : PluginKernel(OFSDP_BACKWARD, op, problem.attributes, problem.inputs, problem.outputs,
                     grad_outputs(*op, p), problem.grad_inputs),
        wanted_(problem.wanted) {}

  void use(const KernelArgs& args) override {
    const size_t outputs = node().op().outputs.size(), inputs = node().op().inputs.size();
    for (size_t i = 0; i < args.inputs.size(); ++i) {
      void* data = args.inputs[i].data;
      if (i < outputs) {
        node().grad_outputs().set(i, data);
      } else if (i < outputs + inputs) {
        node().inputs().set(i - outputs, data);
      } else {
        node().outputs().set(i - outputs - inputs, data);
      }
    }
    for (size_t k = 0; k < wanted_.size(); ++k) {
      node().grad_inputs().set(wanted_[k], args.outputs[k].data);
    }
  }

  static std::vector<TensorDesc> grad_outputs(const PluginOperator& op, const Problem& p) {
    std::vector<TensorDesc> descs = p.inputs;
    descs.resize(op.outputs.size());
    return descs;
  }

  std::vector<size_t> wanted_;
};

TensorDesc desc_of(const GradBuilder& b, Ref ref) { return ref ? b.desc(ref) : TensorDesc{}; }

}  // namespace

std::string backward_domain(const PluginOperator& op) {
  return op.domain.empty() ? kBackwardDomain : format_text("{}.{}", kBackwardDomain, op.domain);
}

bool has_backward_kernel(const PluginOperator& op) {
  return op.def.backward != nullptr && op.def.build_backward == nullptr;
}

void emit_backward(const PluginOperatorPtr& op, GradBuilder& b) {
  std::vector<int64_t> wanted;
  std::vector<TensorDesc> operands;
  std::vector<Ref> grads, inputs, outputs;
  for (size_t i = 0; i < op->inputs.size(); ++i) {
    const Ref input = i < b.num_inputs() ? b.input(i) : Ref{};
    if (input && b.needs_grad(i) && !no_gradient(op->inputs[i])) {
      wanted.push_back(static_cast<int64_t>(i));
    }
    operands.push_back(desc_of(b, input));
    inputs.push_back(saved(op->inputs[i]) ? input : Ref{});
  }
  if (wanted.empty()) return;
  for (size_t i = 0; i < op->outputs.size(); ++i) {
    grads.push_back(no_gradient(op->outputs[i]) ? Ref{} : b.grad_output(i));
    outputs.push_back(saved(op->outputs[i]) ? b.output(i) : Ref{});
    operands.push_back(desc_of(b, outputs.back() ? outputs.back() : grads.back()));
  }
  Attributes attributes = b.attributes();
  attributes.set(kOperands, packed(operands));
  attributes.set(kWanted, wanted);
  std::vector<Ref> all = std::move(grads);
  all.insert(all.end(), inputs.begin(), inputs.end());
  all.insert(all.end(), outputs.begin(), outputs.end());
  const std::string name = backward_domain(*op) + "." + op->name;
  const std::vector<Ref> made = b.emit(name, all, attributes, wanted.size());
  for (size_t k = 0; k < wanted.size(); ++k) b.set_grad(static_cast<size_t>(wanted[k]), made[k]);
}

OpDef plugin_backward_def(const PluginOperatorPtr& op) {
  OpDef def;
  def.domain = backward_domain(*op);
  def.name = op->name;
  def.min_inputs = 0;
  def.infer = [op](const InferContext& c) -> Result<std::vector<TensorDesc>> {
    const BackwardProblem problem = unpacked(*op, c.attributes);
    std::vector<TensorDesc> descs;
    for (const size_t i : problem.wanted) descs.push_back(problem.inputs[i]);
    return descs;
  };
  def.cpu = {{"plug-in", [](const Problem& p) { return p.all_plain(); },
              [op](const Problem& p) { return std::make_unique<BackwardKernel>(op, p); }}};
  return def;
}

}  // namespace ofsdp::plugins
