#include "importer/passes/body_expansion.h"

#include "kernels/base/reject.h"
#include "kernels/core/standard_body.h"

namespace ofsdp::importer {
namespace {

class BodyExpansion final : public BodyBuilder {
 public:
  BodyExpansion(Graph& graph, const Node& node, std::vector<TensorDesc> outputs,
                const TakeNode& take)
      : graph_(graph), node_(node), descs_(std::move(outputs)), take_(take) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == 0) descs_[i] = {};
    }
  }

  Attributes attributes() const override { return node_.attributes; }
  Ref input(size_t i) const override {
    return i < node_.inputs.size() ? Ref{node_.inputs[i]} : Ref{};
  }
  TensorDesc desc(Ref ref) const override { return graph_.value(ref.id).desc; }
  ConstantPtr constant_value(Ref ref) const override { return graph_.value(ref.id).constant; }
  TensorDesc output_desc(size_t i) const override {
    return i < node_.outputs.size() ? descs_[i] : TensorDesc{};
  }
  Ref constant(ConstantPtr value) override {
    return {GraphEditor(graph_).add_constant(node_.name + ".constant", std::move(value))};
  }
  void fail(Status status) override {
    if (status_.ok()) status_ = std::move(status);
  }

  std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                        const Attributes& attributes, size_t num_outputs) override {
    Node made{&graph_.registry->get(op), "", attributes, {}, {}};
    made.name = format_text("{}/{}.{}", node_.name, made.op->name, emitted_++);
    for (const Ref ref : inputs) made.inputs.push_back(ref.id);
    std::vector<Ref> refs;
    for (size_t i = 0; i < num_outputs; ++i) {
      const std::string name = i == 0 ? made.name : format_text("{}.{}", made.name, i);
      made.outputs.push_back(GraphEditor(graph_).add_value({name, ValueKind::kActivation, {}}));
      refs.push_back({made.outputs.back()});
    }
    take(std::move(made));
    if (status_.ok()) return refs;
    // The rest goes on with something; the error is what counts.
    for (Ref& ref : refs) ref = {GraphEditor(graph_).add_value({"", ValueKind::kActivation, {}})};
    return refs;
  }

  void set_output(size_t i, Ref ref) override {
    if (i >= node_.outputs.size() || node_.outputs[i] == 0) return;
    take({&graph_.registry->get("Identity"), node_.name, {}, {ref.id}, {node_.outputs[i]}});
  }

  Status finish() { return std::move(status_); }

 private:
  // Nothing follows an error.
  void take(Node made) {
    if (status_.ok()) fail(take_(std::move(made)));
  }

  Graph& graph_;
  const Node& node_;
  std::vector<TensorDesc> descs_;
  const TakeNode& take_;
  Status status_;
  int emitted_ = 0;
};

}  // namespace

Status expand_body(Graph& graph, const Node& node, const TakeNode& take) {
  OFSDP_ASSIGN_OR_RETURN(const auto descs, infer_outputs(graph, node));
  BodyExpansion expansion(graph, node, descs, take);
  node.op->body(expansion);
  OFSDP_RETURN_IF_ERROR(expansion.finish());
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == 0) continue;
    const TensorDesc& made = graph.value(node.outputs[i]).desc;
    OFSDP_CHECK(made == descs[i], "{}: its body gives {}, not {}", graph.describe(node),
                made.text(), descs[i].text());
  }
  return {};
}

}  // namespace ofsdp::importer
