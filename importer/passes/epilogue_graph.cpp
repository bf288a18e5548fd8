#include "importer/passes/epilogue_graph.h"

namespace ofsdp::importer {
namespace {

void trim(Node& node) {
  while (!node.inputs.empty() && node.inputs.back() == 0) node.inputs.pop_back();
  while (!node.outputs.empty() && node.outputs.back() == 0) node.outputs.pop_back();
}

}  // namespace

EpilogueGraph::EpilogueGraph(const Graph& source, const TakesNode& takes)
    : graph_(source), takes_(takes), dropped_(source.nodes.size()), before_(source.nodes.size()) {
  index();
}

// Views before node i are as if it read what they view.
void EpilogueGraph::index() {
  uses_ = GraphUses(graph_, dropped_);
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    for (const Node& view : before_[i]) {
      uses_.add_reader(view.inputs[0], i);
      uses_.add_maker(view.outputs[0], i);
    }
  }
  wanted_ = {graph_.loss, graph_.matches};
  wanted_.insert(graph_.outputs.begin(), graph_.outputs.end());
  for (const Parameter& p : graph_.parameters) wanted_.insert(p.gradient);
  for (const Carried& c : graph_.carried) wanted_.insert(c.next);
}

ValueId EpilogueGraph::root(ValueId id) const {
  while (maker(id) >= 0 && node(static_cast<size_t>(maker(id))).op->view) {
    id = node(static_cast<size_t>(maker(id))).inputs[0];
  }
  return id;
}

ValueId EpilogueGraph::only_view(ValueId id) const {
  while (!wanted_.contains(id) && readers(id).size() == 1) {
    const Node& reader = node(readers(id)[0]);
    if (!reader.op->view) return id;
    id = reader.outputs[0];
  }
  return 0;
}

bool EpilogueGraph::replace(size_t i, Node made, size_t taken) {
  const ValueId result = graph_.nodes[taken].outputs[0];
  const ValueId product = graph_.nodes[i].outputs[0];
  const bool direct = desc(result) == desc(product);
  if (!direct && wanted_.contains(result)) return false;
  if (!direct && desc(result).layout != Layout::kPlain) return false;
  const ValueId whole = direct ? result : new_value(i, desc(product));
  made.outputs[0] = whole;
  trim(made);
  if (!takes_(graph_, made)) {
    if (!direct) graph_.values.pop_back();
    return false;
  }
  if (direct) {
    dropped_[taken] = true;
  } else {
    graph_.nodes[taken] = reshaped(graph_.nodes[taken], whole, result);
  }
  accept(i, std::move(made));
  return true;
}

bool EpilogueGraph::replace_with(size_t i, Node made, size_t operand, ValueId value, size_t taken) {
  const size_t views = before_[i].size(), values = graph_.values.size();
  made.inputs[operand] = as_matrix(i, value);
  if (made.inputs[operand] != 0 && replace(i, std::move(made), taken)) return true;
  before_[i].resize(views);
  graph_.values.resize(values);
  return false;
}

bool EpilogueGraph::take_over(size_t i, Node made, size_t taken) {
  made.outputs[1] = graph_.nodes[taken].outputs[0];
  trim(made);
  if (!takes_(graph_, made)) return false;
  dropped_[taken] = true;
  accept(i, std::move(made));
  return true;
}

void EpilogueGraph::accept(size_t i, Node made) {
  graph_.nodes[i] = std::move(made);
  ++graph_.fused["epilogue"];
  index();
}

ValueId EpilogueGraph::new_value(size_t i, const TensorDesc& as) {
  return GraphEditor(graph_).add_value(
      {graph_.nodes[i].name + ".epilogue", ValueKind::kActivation, as});
}

Node EpilogueGraph::reshaped(const Node& like, ValueId from, ValueId to) {
  const std::vector<int64_t>& axes = desc(to).shape.axes();
  const ValueId shape = GraphEditor(graph_).add_constant(
      like.name + ".shape",
      make_constant<int64_t>(DType::kInt64, Shape{static_cast<int64_t>(axes.size())}, axes));
  return {graph_.registry->find("", "Reshape"), like.name, {}, {from, shape}, {to}, like.backward};
}

// The value, or a view of it before node `i`, with the shape of the product of `i`; 0: none has.
ValueId EpilogueGraph::as_matrix(size_t i, ValueId id) {
  const TensorDesc wanted = desc(graph_.nodes[i].outputs[0]);
  if (desc(id).layout != Layout::kPlain || desc(id).dtype != wanted.dtype) return 0;
  if (desc(id) == wanted) return id;
  if (desc(root(id)) == wanted) return root(id);
  const ValueId view = new_value(i, wanted);
  before_[i].push_back(reshaped(graph_.nodes[i], id, view));
  return view;
}

Graph EpilogueGraph::finish() {
  std::vector<Node> nodes = std::move(graph_.nodes);
  graph_.nodes.clear();
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (Node& view : before_[i]) graph_.nodes.push_back(std::move(view));
    if (!dropped_[i]) graph_.nodes.push_back(std::move(nodes[i]));
  }
  std::vector<ValueId> wanted;
  for (ValueId id : wanted_) {
    if (id != 0) wanted.push_back(id);
  }
  prune(graph_, wanted);
  return std::move(graph_);
}

}  // namespace ofsdp::importer
