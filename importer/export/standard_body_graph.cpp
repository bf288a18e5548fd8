#include "importer/export/graph_model.h"
#include "kernels/base/reject.h"
#include "kernels/core/standard_body.h"

namespace ofsdp::importer {
namespace {

class GraphBodyBuilder final : public BodyBuilder {
 public:
  GraphBodyBuilder(Graph& graph, const Attributes& attributes, std::vector<Ref> inputs,
                   std::vector<TensorDesc> outputs, Status& status)
      : graph_(graph),
        attributes_(attributes),
        inputs_(std::move(inputs)),
        descs_(std::move(outputs)),
        outputs_(descs_.size()),
        status_(status) {}

  Attributes attributes() const override { return attributes_; }
  Ref input(size_t i) const override { return i < inputs_.size() ? inputs_[i] : Ref{}; }
  TensorDesc desc(Ref ref) const override { return graph_.value(ref.id).desc; }
  ConstantPtr constant_value(Ref ref) const override { return graph_.value(ref.id).constant; }
  TensorDesc output_desc(size_t i) const override {
    return i < descs_.size() ? descs_[i] : TensorDesc{};
  }
  Ref constant(ConstantPtr value) override {
    return {GraphEditor(graph_).add_constant("constant", std::move(value))};
  }
  void set_output(size_t i, Ref ref) override {
    if (i < outputs_.size()) outputs_[i] = ref;
  }
  void fail(Status status) override {
    if (status_.ok()) status_ = std::move(status);
  }
  std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                        const Attributes& attributes, size_t num_outputs) override {
    if (op.starts_with(std::string(kOwnDomain) + ".")) {
      return expand(op, inputs, attributes, num_outputs);
    }
    std::vector<ValueId> ids;
    for (const Ref ref : inputs) ids.push_back(ref.id);
    const std::string name = format_text("{}{}", op, graph_.nodes.size());
    auto made = GraphEditor(graph_).add(op, name, ids, attributes, num_outputs);
    if (!made.ok()) return nothing(std::move(made).status(), num_outputs);
    std::vector<Ref> refs;
    for (const ValueId id : *made) refs.push_back({id});
    return refs;
  }

  const std::vector<Ref>& outputs() const { return outputs_; }

 private:
  // The rest goes on with something; the error is what counts.
  std::vector<Ref> nothing(Status status, size_t count) {
    fail(std::move(status));
    std::vector<Ref> refs;
    for (size_t i = 0; i < count; ++i) refs.push_back(scalar(DType::kFloat32, 0));
    return refs;
  }

  // One of ours within a body: its own body in its place.
  std::vector<Ref> expand(const std::string& op, const std::vector<Ref>& inputs,
                          const Attributes& attributes, size_t num_outputs) {
    Node node{&graph_.registry->get(op), op, attributes, {}, {}};
    const StandardBody body = node.op->body;
    for (const Ref ref : inputs) node.inputs.push_back(ref.id);
    node.outputs.assign(num_outputs, 1);  // all wanted
    auto descs = infer_outputs(graph_, node);
    if (body == nullptr) return nothing(input_error("{} has no standard body", op), num_outputs);
    if (!descs.ok()) return nothing(std::move(descs).status(), num_outputs);
    descs->resize(num_outputs);
    GraphBodyBuilder inner(graph_, attributes, inputs, *descs, status_);
    body(inner);
    return inner.outputs();
  }

  Graph& graph_;
  Attributes attributes_;
  std::vector<Ref> inputs_;
  std::vector<TensorDesc> descs_;
  std::vector<Ref> outputs_;
  Status& status_;
};

}  // namespace

Result<Graph> standard_body_graph(const Graph& graph, const Node& node) {
  const StandardBody body = node.op->body;
  OFSDP_REJECT_IF(body == nullptr, "{}: the operator has no form in standard operators",
                  graph.describe(node));
  Graph made;
  made.file = graph.file;
  made.registry = graph.registry;
  GraphEditor editor(made);
  std::vector<Ref> inputs;
  for (const ValueId id : node.inputs) {
    if (id == 0) {
      inputs.push_back({});
      continue;
    }
    const std::string name = format_text("x{}", made.inputs.size());
    made.inputs.push_back(editor.add_value({name, ValueKind::kInput, graph.value(id).desc}));
    made.value(made.inputs.back()).constant = graph.value(id).constant;
    inputs.push_back({made.inputs.back()});
  }
  std::vector<TensorDesc> outputs;
  for (const ValueId id : node.outputs)
    outputs.push_back(id == 0 ? TensorDesc{} : graph.value(id).desc);
  Status status;
  GraphBodyBuilder builder(made, node.attributes, inputs, outputs, status);
  body(builder);
  if (!status.ok()) return std::move(status).with_prefix(graph.describe(node));
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == 0) continue;
    const Ref ref = builder.outputs()[i];
    OFSDP_CHECK(ref.id != 0, "{}: its body gives no output {}", graph.describe(node), i);
    // A node of its own for each output, also where that is an input.
    OFSDP_ASSIGN_OR_RETURN(const ValueId id,
                           editor.add1("Identity", format_text("y{}", i), {ref.id}));
    OFSDP_CHECK(made.value(id).desc.shape == outputs[i].shape, "{}: its body gives {}, not {}",
                graph.describe(node), made.value(id).desc.text(), outputs[i].text());
    made.outputs.push_back(id);
  }
  prune(made, made.outputs);
  return made;
}

}  // namespace ofsdp::importer
