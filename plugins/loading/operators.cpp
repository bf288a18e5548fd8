#include "plugins/loading/operators.h"

#include "kernels/base/reject.h"

namespace ofsdp::plugins {
namespace {

class ForwardKernel final : public PluginKernel {
 public:
  ForwardKernel(const PluginOperatorPtr& op, const Problem& p)
      : PluginKernel(OFSDP_FORWARD, op, p.attributes, p.inputs, p.outputs) {}

 private:
  void use(const KernelArgs& args) override {
    for (size_t i = 0; i < args.inputs.size(); ++i) node().inputs().set(i, args.inputs[i].data);
    for (size_t i = 0; i < args.outputs.size(); ++i) node().outputs().set(i, args.outputs[i].data);
  }
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
    OFSDP_REJECT_IF(!in_types(op.outputs[i].types, outputs[i].dtype),
                    "the plug-in's infer gives output '{}' as {}, a type it does not declare",
                    op.outputs[i].name, outputs[i].text());
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
  OFSDP_REJECT_IF(c.wanted.size() > op->outputs.size(), "expected at most {} outputs, found {}",
                  op->outputs.size(), c.wanted.size());
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
    OFSDP_REJECT_IF(declared == op.attributes.end(),
                    "has an attribute '{}' that the plug-in does not declare", name);
    OFSDP_REJECT_IF(plugin_attribute(name, value).type != declared->type,
                    "attribute '{}' has another type than the plug-in declares", name);
  }
  for (const ofsdp_attribute& declared : op.attributes) {
    OFSDP_REJECT_IF(declared.required != 0 && !attributes.has(declared.name),
                    "lacks the attribute '{}'", declared.name);
  }
  return {};
}

}  // namespace

Status check_operands(const PluginOperator& op, const Attributes& attributes,
                      const std::vector<TensorDesc>& inputs) {
  OFSDP_REJECT_IF(inputs.size() > op.inputs.size(), "expected at most {} inputs, found {}",
                  op.inputs.size(), inputs.size());
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

bool of_plugin(const OpDef& op) { return !op.cpu.empty() && op.cpu[0].name == "plug-in"; }

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

namespace {

class DevicePluginKernel final : public Kernel {
 public:
  DevicePluginKernel(std::unique_ptr<PluginKernel> kernel, void* stream)
      : kernel_(std::move(kernel)), stream_(stream) {}

  size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

  Status run(const KernelArgs& args) override {
    const StepContext step{args.step->seed, -1, {}};
    return kernel_->put({args.inputs, args.outputs, args.workspace, &step}, stream_);
  }

 private:
  std::unique_ptr<PluginKernel> kernel_;
  void* stream_;
};

}  // namespace

bool plugin_takes(const OpDef& op, const Problem& problem) {
  return of_plugin(op) && op.cpu[0].accepts(problem);
}

std::unique_ptr<Kernel> make_plugin_kernel(Device& device, const OpDef& op,
                                           const Problem& problem) {
  // A plug-in's implementation makes no other kernel.
  std::unique_ptr<PluginKernel> kernel(
      static_cast<PluginKernel*>(op.cpu[0].create(problem).release()));
  if (!kernel->on_devices()) return nullptr;
  return std::make_unique<DevicePluginKernel>(std::move(kernel), device.native_compute());
}

}  // namespace ofsdp::plugins
