#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "importer/passes/model_inputs.h"

namespace ofsdp::importer {
namespace {

// Rewrites a graph node by node. The masks of all documents' places come first.
class DocumentSeparation {
 public:
  DocumentSeparation(const Graph& source, int64_t batch, int64_t length)
      : source_(source), graph_(source), editor_(graph_), batch_(batch), length_(length) {
    graph_.nodes.clear();
  }

  Result<Graph> run() {
    segments_ = add_input(kSegmentsInput);
    positions_ = add_input(kPositionsInput);
    of_samples_.insert(graph_.inputs.begin(), graph_.inputs.end());
    for (const Node& node : source_.nodes) {
      OFSDP_RETURN_IF_ERROR(take(node).with_prefix("--pack: " + source_.describe(node)));
      const Node& placed = graph_.nodes.back();
      const bool of_samples =
          std::ranges::any_of(placed.inputs, [&](ValueId id) { return of_samples_.contains(id); });
      if (of_samples) of_samples_.insert(placed.outputs.begin(), placed.outputs.end());
      of_samples_.erase(0);  // an absent output
    }
    for (const ValueId id : source_.outputs) {
      if (!is_changed(id)) continue;
      return input_error("--pack: {}: output '{}': expected its shape as before", source_.file,
                         source_.value(id).name);
    }
    return std::move(graph_);
  }

 private:
  ValueId add_input(const char* name) {
    Value input;
    input.name = name;
    input.kind = ValueKind::kInput;
    input.desc = {DType::kInt64, Shape{batch_, length_}};
    input.declared = {{-1, "batch"}, {length_, ""}};
    const ValueId id = editor_.add_value(std::move(input));
    graph_.inputs.push_back(id);
    return id;
  }

  // bool [batch, 1, length, length]: query and key are in one document.
  Result<ValueId> same() {
    if (same_ != 0) return same_;
    const auto axes = [&](const char* name, std::vector<int64_t> values) {
      return add_ints(graph_, std::string(kSegmentsInput) + name, values);
    };
    const ValueId of_queries = axes(".queries.axes", {batch_, 1, length_, 1});
    const ValueId of_keys = axes(".keys.axes", {batch_, 1, 1, length_});
    OFSDP_ASSIGN_OR_RETURN(const ValueId queries,
                           editor_.add1("Reshape", "documents.queries", {segments_, of_queries}));
    OFSDP_ASSIGN_OR_RETURN(const ValueId keys,
                           editor_.add1("Reshape", "documents.keys", {segments_, of_keys}));
    OFSDP_ASSIGN_OR_RETURN(same_, editor_.add1("Equal", "documents.same", {queries, keys}));
    return same_;
  }

  // The same as numbers to add to scores.
  Result<ValueId> bias() {
    if (bias_ != 0) return bias_;
    const auto number = [&](const char* name, float value) {
      return editor_.add_constant(name,
                                  make_constant<float>(DType::kFloat32, Shape{}, {&value, 1}));
    };
    OFSDP_ASSIGN_OR_RETURN(const ValueId joined, same());
    const ValueId seen = number("documents.seen", 0);
    const ValueId hidden = number("documents.hidden", -std::numeric_limits<float>::infinity());
    OFSDP_ASSIGN_OR_RETURN(bias_, editor_.add1("Where", "documents.bias", {joined, seen, hidden}));
    return bias_;
  }

  Status take(const Node& node) {
    if (is_operator(node, "Attention")) return take_attention(node);
    if (is_operator(node, "Softmax")) return take_softmax(node);
    for (const char* op : {"Add", "Sub", "Mul", "Div"}) {
      if (is_operator(node, op)) return take_pointwise(node);
    }
    return keep(node);
  }

  bool is_changed(ValueId id) const { return graph_.value(id).desc != source_.value(id).desc; }

  Status keep(const Node& node) {
    const bool changed =
        std::ranges::any_of(node.inputs, [&](ValueId id) { return is_changed(id); });
    return changed ? editor_.place_inferred(node) : editor_.place(node);
  }

  // A mask serves all layers.
  Result<ValueId> masked(ValueId mask) {
    if (mask == 0) return same();
    ValueId& made = masks_[mask];
    if (made != 0) return made;
    const std::string name = "documents.mask" + std::to_string(masks_.size());
    if (graph_.value(mask).desc.dtype == DType::kBool) {
      OFSDP_ASSIGN_OR_RETURN(const ValueId joined, same());
      OFSDP_ASSIGN_OR_RETURN(made, editor_.add1("And", name, {mask, joined}));
      return made;
    }
    OFSDP_ASSIGN_OR_RETURN(const ValueId addend, bias());
    OFSDP_ASSIGN_OR_RETURN(made, editor_.add1("Add", name, {mask, addend}));
    return made;
  }

  Status take_attention(const Node& node) {
    Node made = node;
    made.inputs.resize(std::max<size_t>(made.inputs.size(), 4));
    OFSDP_ASSIGN_OR_RETURN(made.inputs[3], masked(made.inputs[3]));
    return editor_.place(std::move(made));
  }

  // Scores of an attention that no rule has joined: [batch, heads, queries, keys].
  Status take_softmax(const Node& node) {
    const Shape& shape = graph_.value(node.inputs[0]).desc.shape;
    const bool scores =
        shape.rank() == 4 && shape[0] == batch_ && shape[2] == length_ && shape[3] == length_;
    if (!scores || graph_.value(node.inputs[0]).desc.dtype != DType::kFloat32) {
      return keep(node);
    }
    Node made = node;
    OFSDP_ASSIGN_OR_RETURN(const ValueId addend, bias());
    OFSDP_ASSIGN_OR_RETURN(made.inputs[0],
                           editor_.add1("Add", node.name + ".documents", {node.inputs[0], addend}));
    return editor_.place(std::move(made));
  }

  // [length, width] or [1, length, width], and no input reaches it: a part of a table of positions,
  // looked up or sliced, or sinusoids.
  bool has_places(ValueId id) const {
    const Shape& shape = graph_.value(id).desc.shape;
    const bool table = shape.rank() == 2 || (shape.rank() == 3 && shape[0] == 1);
    return table && shape[shape.rank() - 2] == length_ && !of_samples_.contains(id);
  }

  bool has_tokens(ValueId id) const {
    const Shape& shape = graph_.value(id).desc.shape;
    const bool rows = shape.rank() == 3 && shape[0] == batch_ && shape[1] == length_;
    return rows && of_samples_.contains(id);
  }

  // Returns a table's rows at the positions of the tokens.
  Result<ValueId> at_positions(ValueId table) {
    ValueId& made = tables_[table];
    if (made != 0) return made;
    const Shape shape = graph_.value(table).desc.shape;
    const std::string name = "documents.positions" + std::to_string(tables_.size());
    ValueId rows = table;
    if (shape.rank() == 3) {
      const ValueId axes = add_ints(graph_, name + ".axes", {length_, shape[2]});
      OFSDP_ASSIGN_OR_RETURN(rows, editor_.add1("Reshape", name + ".rows", {table, axes}));
    }
    OFSDP_ASSIGN_OR_RETURN(made, editor_.add1("Gather", name, {rows, positions_}));
    return made;
  }

  // A table that meets tokens begins again with each document.
  Status take_pointwise(const Node& node) {
    Node made = node;
    for (size_t i = 0; i < 2; ++i) {
      if (!has_tokens(node.inputs[1 - i]) || !has_places(node.inputs[i])) continue;
      OFSDP_ASSIGN_OR_RETURN(made.inputs[i], at_positions(node.inputs[i]));
    }
    return keep(made);
  }

  const Graph& source_;
  Graph graph_;
  GraphEditor editor_;
  const int64_t batch_, length_;
  ValueId segments_ = 0, positions_ = 0, same_ = 0, bias_ = 0;
  std::set<ValueId> of_samples_;       // values that an input reaches
  std::map<ValueId, ValueId> masks_;   // of the file -> with the documents
  std::map<ValueId, ValueId> tables_;  // of the row's places -> of the tokens' positions
};

}  // namespace

Result<Graph> separate_documents(const Graph& graph, int64_t batch, int64_t length) {
  return DocumentSeparation(graph, batch, length).run();
}

}  // namespace ofsdp::importer
