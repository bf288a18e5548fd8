#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "importer/graph/graph_uses.h"
#include "importer/passes/passes.h"

namespace ofsdp::importer {
namespace {

// Below that the rows that a step leaves out are not worth what finding them takes.
constexpr int64_t kLeastRows = 128;
constexpr int64_t kLeastClasses = 1024;

bool may_leave_rows_out(const Graph& graph, const Node& node) {
  if (!is_operator(node, "ofsdp.SoftmaxCrossEntropyLossWithGradient")) return false;
  const Shape& scores = graph.value(node.inputs[1]).desc.shape;
  return node.attributes.has("ignore_index") && scores[0] >= kLeastRows &&
         scores[1] >= kLeastClasses;
}

// One loss and the products around it, in a copy of the graph.
class KeptRows {
 public:
  KeptRows(const Graph& source, const TakesNode& takes, size_t loss)
      : graph_(source),
        takes_(takes),
        uses_(source),
        loss_(loss),
        moved_(source.nodes.size()),
        before_(source.nodes.size()),
        after_(source.nodes.size()) {
    // Nothing reads the file's outputs in training: their gradient may take their place.
    for (ValueId id : trained_values(graph_)) wanted_.insert(id);
  }

  // For with_views.
  const std::vector<size_t>& readers(ValueId id) const { return uses_.readers(id); }
  const Node& node(size_t i) const { return graph_.nodes[i]; }

  // The graph with the products of kept rows; none where something is in the way.
  std::optional<Graph> run() {
    const Node loss = node(loss_);
    scores_ = graph_.value(loss.inputs[1]).desc;
    const int product = maker_of_scores(loss.inputs[1]);
    if (product < 0 || !find_readers(loss.outputs[1])) return std::nullopt;
    const auto first = static_cast<size_t>(product);
    if (!find_rows(first, loss) || !multiply(first, false)) return std::nullopt;
    for (size_t reader : products_) {
      if (!multiply(reader, true)) return std::nullopt;
    }
    Node reading = loss;
    reading.inputs[2] = labels_;
    if (!change(graph_.nodes[loss_], std::move(reading))) return std::nullopt;
    ++graph_.fused["kept_rows"];
    return finish();
  }

 private:
  enum Operand : size_t { kA, kB, kC, kRowsOperand };

  static bool sums_rows(const Node& product) { return product.attributes.i("transA", 0) != 0; }

  bool is_product(size_t i) const {
    return is_operator(node(i), "Gemm") && !node(i).attributes.has("ofsdp_activation");
  }

  // The product whose result the scores are, or a view of it that nothing else reads; -1: none.
  int maker_of_scores(ValueId id) const {
    while (uses_.readers(id).size() == 1 && !wanted_.contains(id) && uses_.maker(id) >= 0) {
      const auto maker = static_cast<size_t>(uses_.maker(id));
      if (!node(maker).op->view) {
        const bool whole = graph_.value(id).desc == scores_ && is_product(maker);
        return whole && !sums_rows(node(maker)) ? static_cast<int>(maker) : -1;
      }
      id = node(maker).inputs[0];
    }
    return -1;
  }

  // The products that read the gradient of the scores. Of others a sum over all rows alone may,
  // which does not ask for their order.
  bool find_readers(ValueId gradient) {
    gradient_ = with_views(*this, gradient);
    for (ValueId view : gradient_) {
      if (wanted_.contains(view)) return false;
      for (size_t reader : uses_.readers(view)) {
        const Node& n = node(reader);
        if (n.op->view) continue;
        if (is_operator(n, "ofsdp.SumTo")) {
          if (graph_.value(n.outputs[0]).desc.numel() != scores_.shape[1]) return false;
          continue;
        }
        if (graph_.value(view).desc != scores_ || !is_product(reader)) return false;
        const bool over_rows = sums_rows(n) && n.attributes.i("transB", 0) == 0;
        if (!over_rows && (sums_rows(n) || n.inputs[kA] != view)) return false;
        products_.insert(reader);
      }
    }
    return true;
  }

  // Moves the nodes that make `id` before the first product; false if it depends on that.
  bool move_before(size_t first, ValueId id) {
    const int maker = uses_.maker(id);
    if (maker < static_cast<int>(first)) return true;
    const auto i = static_cast<size_t>(maker);
    if (i == first || moved_[i]) return i != first;
    moved_[i] = true;
    for (ValueId input : node(i).inputs) {
      if (input != 0 && !move_before(first, input)) return false;
    }
    before_[first].push_back(node(i));
    before_[first].back().backward = node(first).backward;
    return true;
  }

  // Puts ofsdp.KeptRows before the first product; later nodes read its outputs.
  bool find_rows(size_t first, const Node& loss) {
    if (!move_before(first, loss.inputs[2])) return false;
    const Attributes attributes{{"ignore_index", loss.attributes.i("ignore_index", 0)},
                                {"classes", scores_.shape[1]}};
    const auto made =
        add(before_[first], "ofsdp.KeptRows", loss.name, {loss.inputs[2]}, attributes, 2,
            node(first).backward);  // a recomputed product is
    if (made.empty()) return false;
    rows_ = made[0];
    labels_ = made[1];
    return true;
  }

  // The kept rows of an operand of node i; 0: none. The gradient of the scores has them already.
  ValueId taken(size_t i, ValueId operand) {
    if (const auto it = taken_.find(operand); it != taken_.end()) return it->second;
    const auto made = add(before_[i], "ofsdp.TakeKeptRows", node(i).name, {operand, rows_}, {}, 1,
                          node(i).backward);
    return made.empty() ? 0 : taken_[operand] = made[0];
  }

  bool multiply(size_t i, bool of_gradient) {
    Node made = node(i);
    if (made.inputs.size() > kC && made.inputs[kC] != 0) {
      if (of_gradient || graph_.value(made.inputs[kC]).desc.shape.rank() > 1) return false;
    }
    made.op = &graph_.registry->get("ofsdp.KeptRowsGemm");
    made.inputs.resize(kRowsOperand + 1, 0);
    made.inputs[kRowsOperand] = rows_;
    const bool reads_scores = of_gradient && !sums_rows(made);
    for (size_t operand : {kA, kB}) {
      const bool has_rows = sums_rows(made) || (operand == kA && !reads_scores);
      if (!has_rows || is_gradient(made.inputs[operand])) continue;
      made.inputs[operand] = taken(i, made.inputs[operand]);
      if (made.inputs[operand] == 0) return false;
    }
    if (reads_scores && !put_back(i, made)) return false;
    return takes_(graph_, made) && change(graph_.nodes[i], std::move(made));
  }

  bool change(Node& node, Node made) {
    return GraphEditor(graph_).change(node, std::move(made)).ok();
  }

  bool is_gradient(ValueId id) const { return std::ranges::count(gradient_, id) > 0; }

  // Rows of the result of `made` go back to their places, into the value that it made before.
  bool put_back(size_t i, Node& made) {
    const ValueId whole = made.outputs[0];
    Value rows = graph_.value(whole);
    rows.name += ".kept";
    made.outputs[0] = GraphEditor(graph_).add_value(std::move(rows));
    const auto put =
        add(after_[i], "ofsdp.PutKeptRows", made.name, {made.outputs[0], rows_}, {}, 1, true);
    if (put.empty()) return false;
    Node putting = after_[i].back();
    putting.outputs[0] = whole;
    return change(after_[i].back(), std::move(putting));
  }

  // Adds a node at a place; empty where `takes` refuses it.
  std::vector<ValueId> add(std::vector<Node>& place, const std::string& op, const std::string& of,
                           const std::vector<ValueId>& inputs, const Attributes& attributes,
                           size_t outputs, bool backward) {
    const std::string name = of + "." + graph_.registry->get(op).name;
    auto made = GraphEditor(graph_).add(op, name, inputs, attributes, outputs, backward);
    if (!made.ok() || !takes_(graph_, graph_.nodes.back())) return {};
    place.push_back(std::move(graph_.nodes.back()));
    graph_.nodes.pop_back();
    return *made;
  }

  Graph finish() {
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (size_t i = 0; i < nodes.size(); ++i) {
      std::ranges::move(before_[i], std::back_inserter(graph_.nodes));
      if (!moved_[i]) graph_.nodes.push_back(std::move(nodes[i]));
      std::ranges::move(after_[i], std::back_inserter(graph_.nodes));
    }
    return std::move(graph_);
  }

  Graph graph_;
  const TakesNode& takes_;
  GraphUses uses_;
  size_t loss_;
  std::vector<bool> moved_;  // per node, like the next two
  std::vector<std::vector<Node>> before_, after_;
  std::set<ValueId> wanted_;
  TensorDesc scores_;
  std::vector<ValueId> gradient_;  // of the scores, and its views
  std::set<size_t> products_;      // readers of these
  ValueId rows_ = 0, labels_ = 0;
  std::map<ValueId, ValueId> taken_;
};

}  // namespace

Graph multiply_kept_rows(const Graph& graph, const TakesNode& takes) {
  Graph made = graph;
  for (size_t i = 0; i < made.nodes.size(); ++i) {
    if (!may_leave_rows_out(made, made.nodes[i])) continue;
    if (std::optional<Graph> joined = KeptRows(made, takes, i).run()) made = *std::move(joined);
  }
  return made;
}

}  // namespace ofsdp::importer
