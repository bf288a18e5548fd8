// A plug-in's backward as a kernel: the node that it becomes, and what runs it.
#include "plugins/loading/operators.h"

namespace ofsdp::plugins {
namespace {

constexpr const char* kOperands = "ofsdp.operands";
constexpr const char* kWanted = "ofsdp.wanted";

bool saved(const ofsdp_operand& operand) { return (operand.flags & OFSDP_SAVED) != 0; }

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
