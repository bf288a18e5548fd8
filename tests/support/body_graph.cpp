#include "tests/support/body_graph.h"

#include "importer/export/graph_model.h"
#include "tests/support/namespaces.h"
#include "tests/support/op_check.h"
#include "tests/support/reference_grad.h"

namespace ofsdp::testing {
namespace {

using Tensors = std::vector<RefTensor>;

Tensors inputs_of(const Node& node, const std::map<ValueId, RefTensor>& values) {
  Tensors inputs;
  for (const ValueId id : node.inputs) inputs.push_back(id == 0 ? RefTensor{} : values.at(id));
  return inputs;
}

// Gradients for values, backwards through a body.
class Backward {
 public:
  Backward(const Registry& registry, const Graph& body, const std::map<ValueId, RefTensor>& values,
           std::string& error)
      : registry_(registry), body_(body), values_(values), error_(error) {}

  void seed(ValueId id, RefTensor gradient) { add(id, gradient); }
  void run() {
    for (size_t i = body_.nodes.size(); i-- > 0;) through(body_.nodes[i]);
  }
  const RefTensor* of(ValueId id) const {
    const auto found = gradients_.find(id);
    return found == gradients_.end() ? nullptr : &found->second;
  }

 private:
  void add(ValueId id, const RefTensor& gradient) {
    const auto [at, fresh] = gradients_.try_emplace(id, gradient);
    if (fresh) return;
    for (size_t i = 0; i < gradient.values.size(); ++i) at->second.values[i] += gradient.values[i];
  }

  void through(const Node& node) {
    SampleCase sample{.name = node.name, .attributes = node.attributes};
    CaseValues values;
    values.inputs = inputs_of(node, values_);
    std::set<size_t> needed;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Value& value = body_.value(node.inputs[i]);
      values.constants.push_back(value.constant);
      if (value.constant == nullptr && is_floating(value.desc.dtype)) needed.insert(i);
    }
    sample.inputs = descs_of(values.inputs);
    sample.num_outputs = node.outputs.size();
    if (node.op->grad == nullptr || needed.empty()) return;
    ReferenceGrad grad(registry_, *node.op, sample, values, needed);
    bool reached = false;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const RefTensor* seed = of(node.outputs[i]);
      if (seed != nullptr) grad.seed(i, *seed);
      reached |= seed != nullptr;
    }
    if (!reached) return;
    node.op->grad(grad);
    error_ += grad.error();
    for (const auto& [input, ref] : grad.grads()) add(node.inputs[input], grad.value(ref));
  }

  const Registry& registry_;
  const Graph& body_;
  const std::map<ValueId, RefTensor>& values_;
  std::string& error_;
  std::map<ValueId, RefTensor> gradients_;
};

}  // namespace

std::vector<TensorDesc> descs_of(const Tensors& tensors) {
  std::vector<TensorDesc> descs;
  for (const RefTensor& tensor : tensors) descs.push_back(tensor.desc);
  return descs;
}

OneNode one_node(const Registry& registry, const std::string& op, const Attributes& attributes,
                 const std::vector<TensorDesc>& inputs, const std::vector<TensorDesc>& outputs,
                 const std::vector<ConstantPtr>& constants) {
  OneNode made;
  made.graph.registry = &registry;
  made.node = {&registry.get(op), op, attributes, {}, {}};
  GraphEditor editor(made.graph);
  const auto add = [&](const TensorDesc& desc) {
    return desc.present() ? editor.add_value({"", ValueKind::kInput, desc}) : 0;
  };
  for (const TensorDesc& desc : inputs) made.node.inputs.push_back(add(desc));
  for (const TensorDesc& desc : outputs) made.node.outputs.push_back(add(desc));
  for (size_t i = 0; i < constants.size(); ++i) {
    if (const ValueId id = made.node.inputs[i]; id != 0)
      made.graph.value(id).constant = constants[i];
  }
  return made;
}

std::map<ValueId, RefTensor> body_values(const Graph& body, const Tensors& inputs) {
  std::map<ValueId, RefTensor> values;
  size_t at = 0;
  for (const RefTensor& input : inputs) {
    if (input.desc.present()) values[body.inputs[at++]] = input;
  }
  for (size_t id = 1; id < body.values.size(); ++id) {
    const Value& value = body.values[id];
    if (value.constant == nullptr) continue;
    values[static_cast<ValueId>(id)] = {value.desc,
                                        to_doubles(value.desc, value.constant->bytes.data())};
  }
  for (const Node& node : body.nodes) {
    std::vector<TensorDesc> descs;
    for (const ValueId id : node.outputs) descs.push_back(body.value(id).desc);
    const auto made = node.op->reference(
        {node.attributes, inputs_of(node, values), descs, kCheckNodeSeed, check_step()});
    for (size_t i = 0; i < node.outputs.size(); ++i) values[node.outputs[i]] = made[i];
  }
  return values;
}

std::map<size_t, RefTensor> body_gradients(const Registry& registry, const OpDef& op,
                                           const SampleCase& sample, const CaseValues& values,
                                           const std::set<size_t>& needed,
                                           const std::map<size_t, std::vector<double>>& seeds,
                                           std::string& error) {
  const std::vector<TensorDesc> inputs = descs_of(values.inputs);
  auto descs = op.infer(
      {sample.attributes, inputs, values.constants, std::vector(sample.num_outputs, true)});
  descs->resize(sample.num_outputs);
  const OneNode one =
      one_node(registry, op.full_name(), sample.attributes, inputs, *descs, values.constants);
  const auto body = standard_body_graph(one.graph, one.node);
  if (!body.ok()) {
    error += body.error().message() + "\n";
    return {};
  }
  const auto all = body_values(*body, values.inputs);
  Backward backward(registry, *body, all, error);
  for (const auto& [output, seed] : seeds) {
    const ValueId id = body->outputs[output];
    backward.seed(id, {body->value(id).desc, seed});
  }
  backward.run();
  std::map<size_t, RefTensor> made;
  size_t at = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].present()) continue;
    const RefTensor* gradient = backward.of(body->inputs[at++]);
    if (gradient != nullptr && needed.contains(i)) made[i] = *gradient;
  }
  return made;
}

}  // namespace ofsdp::testing
