#include "importer/passes/fusion/rewriter.h"

#include <algorithm>
#include <cmath>

#include "importer/graph/graph_uses.h"

namespace ofsdp::importer {

Rewriter::Rewriter(const Graph& source, const std::vector<ValueId>& wanted)
    : graph_(source),
      editor_(graph_),
      reads_(source.values.size(), 0),
      maker_(source.values.size(), -1),
      trained_(source.values.size(), false) {
  graph_.nodes.clear();
  for (const Parameter& p : source.parameters) trained_[static_cast<size_t>(p.value)] = p.trained;
  for (const Node& node : source.nodes) {
    for (ValueId id : node.inputs) ++reads_[static_cast<size_t>(id)];
  }
  for (ValueId id : wanted) ++reads_[static_cast<size_t>(id)];
}

void Rewriter::grow() {
  reads_.resize(graph_.values.size(), 0);
  maker_.resize(graph_.values.size(), -1);
  trained_.resize(graph_.values.size(), false);
}

const Node* Rewriter::maker(ValueId id) const {
  const int n = maker_[static_cast<size_t>(id)];
  return n < 0 ? nullptr : &graph_.nodes[static_cast<size_t>(n)];
}

const Node* Rewriter::made_by(ValueId id, const char* op) const {
  const Node* node = maker(id);
  const bool fits = node != nullptr && node->op->full_name() == op && node->outputs[0] == id;
  return fits ? node : nullptr;
}

std::optional<double> Rewriter::scalar(ValueId id) const {
  const Value& value = graph_.value(id);
  if (value.kind != ValueKind::kConstant || value.desc.numel() != 1) return std::nullopt;
  return to_doubles(value.desc, value.constant->bytes.data())[0];
}

bool Rewriter::is_scalar(ValueId id, double expected) const {
  const auto found = scalar(id);
  return found && std::abs(*found - expected) <= 1e-4 * std::abs(expected);
}

void Rewriter::append(Node node) {
  grow();
  const bool learns = std::ranges::any_of(node.inputs, [&](ValueId id) { return trained(id); });
  for (ValueId id : node.outputs) {
    if (id == 0) continue;
    maker_[static_cast<size_t>(id)] = static_cast<int>(graph_.nodes.size());
    trained_[static_cast<size_t>(id)] = learns;
  }
  graph_.nodes.push_back(std::move(node));
}

ValueId Rewriter::emit(const std::string& op, const std::string& name,
                       const std::vector<ValueId>& inputs, const Attributes& attributes) {
  auto made = editor_.add1(op, name, inputs, attributes);
  OFSDP_CHECK(made.ok(), "fusion: {}", made.error().message());
  Node node = std::move(graph_.nodes.back());
  graph_.nodes.pop_back();
  append(std::move(node));
  for (ValueId id : inputs) ++reads_[static_cast<size_t>(id)];
  reads_[static_cast<size_t>(*made)] = 1;
  return *made;
}

ValueId Rewriter::ints(const std::vector<int64_t>& values) {
  const ValueId id = add_ints(graph_, "ints", values);
  grow();
  return id;
}

bool Rewriter::replace(const Node& node, const std::string& op, const std::vector<ValueId>& inputs,
                       const Attributes& attributes, const std::string& name) {
  Node made{&graph_.registry->get(op),
            name.empty() ? node.name : name,
            attributes,
            inputs,
            {node.outputs[0]},
            false};
  const auto descs = infer_outputs(graph_, made);
  if (!descs.ok() || !((*descs)[0] == desc(node.outputs[0]))) return false;
  append(std::move(made));
  return true;
}

void Rewriter::keep(const Node& node) { append(node); }

Graph Rewriter::finish(const std::vector<ValueId>& wanted) {
  prune(graph_, wanted);
  return std::move(graph_);
}

}  // namespace ofsdp::importer
