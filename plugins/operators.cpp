#include "plugins/operators.h"

namespace ofsdp {
namespace {

constexpr const char* kOperands = "ofsdp.operands";
constexpr const char* kWanted = "ofsdp.wanted";

// --- forward ---

class ForwardKernel final : public Kernel {
 public:
  ForwardKernel(const PluginOperatorPtr& op, const Problem& p)
      : node_(op, p.attributes, p.inputs, p.outputs), bytes_(node_.scratch_bytes(OFSDP_FORWARD)) {}

  size_t workspace_bytes() const override { return bytes_; }

  Status run(const KernelArgs& args) override {
    for (size_t i = 0; i < args.inputs.size(); ++i) node_.inputs().set(i, args.inputs[i].data);
    for (size_t i = 0; i < args.outputs.size(); ++i) node_.outputs().set(i, args.outputs[i].data);
    node_.set_scratch(args.workspace, bytes_);
    node_.set_step(args.step);
    return node_.call(ErrorKind::kFault, "forward",
                      [&] { return node_.op().def.forward(&node_.node()); });
  }

 private:
  PluginNode node_;
  size_t bytes_;
};

std::vector<TensorDesc> wanted_outputs(const PluginOperator& op, const InferContext& c) {
  std::vector<TensorDesc> descs(op.outputs.size());
  for (size_t i = 0; i < descs.size() && i < c.wanted.size(); ++i) {
    if (c.wanted[i]) descs[i] = {DType::kFloat32, {}};
  }
  return descs;
}

Status check_outputs(const PluginOperator& op, const InferContext& c,
                     const std::vector<TensorDesc>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool wanted = i < c.wanted.size() && c.wanted[i];
    if (!outputs[i].present()) {
      if (!wanted) continue;
      return input_error("the plug-in's infer gives no type and shape of output '{}'",
                         op.outputs[i].name);
    }
    if (!in_types(op.outputs[i].types, outputs[i].dtype)) {
      return input_error("the plug-in's infer gives output '{}' as {}, a type it does not declare",
                         op.outputs[i].name, outputs[i].text());
    }
    for (const int64_t axis : outputs[i].shape.axes()) {
      if (axis >= 0) continue;
      return input_error("the plug-in's infer gives output '{}' as {}", op.outputs[i].name,
                         outputs[i].text());
    }
  }
  return {};
}

Result<std::vector<TensorDesc>> infer(const PluginOperatorPtr& op, const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_operands(*op, c.attributes, c.inputs));
  if (c.wanted.size() > op->outputs.size()) {
    return input_error("expected at most {} outputs, found {}", op->outputs.size(),
                       c.wanted.size());
  }
  PluginNode node(op, c.attributes, c.inputs, wanted_outputs(*op, c));
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    if (c.constant(i) != nullptr) node.inputs().set(i, c.constant(i)->bytes.data());
  }
  std::vector<TensorDesc> outputs(op->outputs.size());
  if (op->def.infer == nullptr) {
    for (size_t i = 0; i < c.wanted.size(); ++i)
      outputs[i] = {c.inputs[0].dtype, c.inputs[0].shape};
  } else {
    OFSDP_RETURN_IF_ERROR(
        node.call(ErrorKind::kInput, "infer", [&] { return op->def.infer(&node.node()); }));
    outputs = node.outputs_set();
  }
  OFSDP_RETURN_IF_ERROR(check_outputs(*op, c, outputs));
  return outputs;
}

// --- backward as a kernel ---

bool saved(const ofsdp_operand& operand) { return (operand.flags & OFSDP_SAVED) != 0; }
bool no_gradient(const ofsdp_operand& operand) { return (operand.flags & OFSDP_NO_GRADIENT) != 0; }

// Every operand of the node as numbers: dtype, rank, axes.
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

class BackwardKernel final : public Kernel {
 public:
  BackwardKernel(const PluginOperatorPtr& op, const Problem& p)
      : problem_(unpacked(*op, p.attributes)),
        node_(op, problem_.attributes, problem_.inputs, problem_.outputs, grad_outputs(*op, p),
              problem_.grad_inputs),
        bytes_(node_.scratch_bytes(OFSDP_BACKWARD)) {}

  size_t workspace_bytes() const override { return bytes_; }

  Status run(const KernelArgs& args) override {
    const size_t outputs = node_.op().outputs.size(), inputs = node_.op().inputs.size();
    for (size_t i = 0; i < args.inputs.size(); ++i) {
      void* data = args.inputs[i].data;
      if (i < outputs) {
        node_.grad_outputs().set(i, data);
      } else if (i < outputs + inputs) {
        node_.inputs().set(i - outputs, data);
      } else {
        node_.outputs().set(i - outputs - inputs, data);
      }
    }
    for (size_t k = 0; k < problem_.wanted.size(); ++k) {
      node_.grad_inputs().set(problem_.wanted[k], args.outputs[k].data);
    }
    node_.set_scratch(args.workspace, bytes_);
    node_.set_step(args.step);
    return node_.call(ErrorKind::kFault, "backward",
                      [&] { return node_.op().def.backward(&node_.node()); });
  }

 private:
  static std::vector<TensorDesc> grad_outputs(const PluginOperator& op, const Problem& p) {
    std::vector<TensorDesc> descs = p.inputs;
    descs.resize(op.outputs.size());
    return descs;
  }

  BackwardProblem problem_;
  PluginNode node_;
  size_t bytes_;
};

TensorDesc desc_of(const GradBuilder& b, Ref ref) { return ref ? b.desc(ref) : TensorDesc{}; }

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

GradFn grad_of(const PluginOperatorPtr& op) {
  if (op->def.build_backward != nullptr) return [op](GradBuilder& b) { build_backward(op, b); };
  if (op->def.backward != nullptr) return [op](GradBuilder& b) { emit_backward(op, b); };
  for (const ofsdp_operand& input : op->inputs) {
    if (!no_gradient(input)) return nullptr;
  }
  return [](GradBuilder&) {};  // nothing to differentiate
}

bool has_type(const PluginOperator& op, DType dtype) {
  for (const ofsdp_operand& input : op.inputs) {
    if (in_types(input.types, DType::kFloat32) && !in_types(input.types, dtype)) return false;
  }
  return true;
}

std::vector<Implementation> forward_kernels(const PluginOperatorPtr& op) {
  return {{"plug-in",
           [op](const Problem& p) {
             return p.all_plain() && check_operands(*op, p.attributes, p.inputs).ok();
           },
           [op](const Problem& p) { return std::make_unique<ForwardKernel>(op, p); }}};
}

Status check_attributes(const PluginOperator& op, const Attributes& attributes) {
  for (const auto& [name, value] : attributes.all()) {
    const auto declared = std::ranges::find_if(
        op.attributes, [&, &name = name](const auto& a) { return name == a.name; });
    if (declared == op.attributes.end()) {
      return input_error("has an attribute '{}' that the plug-in does not declare", name);
    }
    if (plugin_attribute(name, value).type != declared->type) {
      return input_error("attribute '{}' has another type than the plug-in declares", name);
    }
  }
  for (const ofsdp_attribute& declared : op.attributes) {
    if (declared.required != 0 && !attributes.has(declared.name)) {
      return input_error("lacks the attribute '{}'", declared.name);
    }
  }
  return {};
}

}  // namespace

std::string backward_domain(const PluginOperator& op) {
  return op.domain.empty() ? kBackwardDomain : fmt::format("{}.{}", kBackwardDomain, op.domain);
}

bool has_backward_kernel(const PluginOperator& op) {
  return op.def.backward != nullptr && op.def.build_backward == nullptr;
}

Status check_operands(const PluginOperator& op, const Attributes& attributes,
                      const std::vector<TensorDesc>& inputs) {
  if (inputs.size() > op.inputs.size()) {
    return input_error("expected at most {} inputs, found {}", op.inputs.size(), inputs.size());
  }
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const ofsdp_operand& declared = op.inputs[i];
    const bool present = i < inputs.size() && inputs[i].present();
    if (!present && (declared.flags & OFSDP_OPTIONAL) != 0) continue;
    if (!present) return input_error("lacks the input '{}'", declared.name);
    if (in_types(declared.types, inputs[i].dtype)) continue;
    return input_error("input '{}' is {}, a type that the plug-in does not take", declared.name,
                       inputs[i].text());
  }
  return check_attributes(op, attributes);
}

OpDef plugin_op_def(const PluginOperatorPtr& op) {
  OpDef def;
  def.domain = op->domain;
  def.name = op->name;
  def.min_inputs = 0;  // infer says which one is missing
  def.first_opset = std::max(op->def.since_version, 1);
  def.last_opset = op->def.until_version;
  def.infer = [op](const InferContext& c) { return infer(op, c); };
  def.grad = grad_of(op);
  def.cpu = forward_kernels(op);
  def.float32_only = !has_type(*op, DType::kBFloat16) || !has_type(*op, DType::kFloat16);
  for (size_t i = 0; i < op->inputs.size(); ++i) {
    if ((op->inputs[i].flags & OFSDP_KNOWN) != 0) {
      def.constant_inputs.push_back(static_cast<int>(i));
    }
  }
  return def;
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

OpDef overridden(const OpDef& built_in, const PluginOperatorPtr& op) {
  OpDef def = built_in;
  def.cpu = forward_kernels(op);
  def.cpu.insert(def.cpu.end(), built_in.cpu.begin(), built_in.cpu.end());
  def.view = false;
  def.inplace_inputs.clear();
  def.layout = LayoutRule::kPlain;
  if (op->def.backward != nullptr || op->def.build_backward != nullptr) def.grad = grad_of(op);
  return def;
}

}  // namespace ofsdp
