#include "importer/passes/joined_nodes.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "importer/graph/graph.h"
#include "importer/passes/passes.h"
#include "kernels/core/planned_operands.h"

namespace ofsdp::importer {
namespace {

class LossJoiner {
 public:
  LossJoiner(const Graph& source, const TakesNode& takes)
      : graph_(source), takes_(takes), uses_(source) {
    for (ValueId id : trained_values(graph_)) kept_.insert(id);
    kept_.insert(graph_.outputs.begin(), graph_.outputs.end());
  }

  Graph run() {
    std::vector<bool> joined(graph_.nodes.size());
    for (size_t i = 0; i < joined.size(); ++i) joined[i] = join(graph_.nodes[i]);
    std::vector<Node> nodes;
    for (size_t i = 0; i < joined.size(); ++i) {
      if (!joined[i]) nodes.push_back(std::move(graph_.nodes[i]));
    }
    graph_.nodes = std::move(nodes);
    return std::move(graph_);
  }

 private:
  // A gradient and the loss, and the gradient's input that is the loss's output 1. Labels and class
  // weights are inputs 2 and 3 for the gradient, inputs 1 and 2 for the loss.
  struct Pair {
    const char *gradient, *loss;
    size_t kept;
  };
  static constexpr Pair kPairs[] = {
      {"ofsdp.SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyLoss", 1},
      {"ofsdp.NarrowCrossEntropyLossGrad", "ofsdp.NarrowCrossEntropyLoss", 4},
  };

  static ValueId input(const Node& node, size_t i) {
    return i < node.inputs.size() ? node.inputs[i] : 0;
  }

  // Returns whether the loss node now also makes this gradient.
  bool join(const Node& gradient) {
    return std::ranges::any_of(kPairs, [&](const Pair& pair) {
      return is_operator(gradient, pair.gradient) && join(gradient, pair);
    });
  }

  bool join(const Node& gradient, const Pair& pair) {
    const ValueId kept = input(gradient, pair.kept);
    const int maker = uses_.maker(kept);
    const bool alone = uses_.readers(kept).size() == 1 && !kept_.contains(kept);
    const ValueId weight = gradient.inputs[0];
    const bool starts = graph_.value(weight).kind == ValueKind::kLossWeight;
    if (!starts || maker < 0 || !alone) return false;
    if (input(gradient, 5) != 0)
      return false;  // a gradient that flows back through the saved output
    Node& loss = graph_.nodes[static_cast<size_t>(maker)];
    const bool of_it = is_operator(loss, pair.loss) && loss.outputs[1] == kept &&
                       input(loss, 1) == input(gradient, 2) &&
                       input(loss, 2) == input(gradient, 3) &&
                       loss.attributes.all() == gradient.attributes.all();
    if (!of_it) return false;
    Node made = loss;
    made.op = &graph_.registry->get("ofsdp.SoftmaxCrossEntropyLossWithGradient");
    made.inputs.insert(made.inputs.begin(), weight);
    made.outputs[1] = gradient.outputs[0];
    if (made.outputs[0] == 0 || !takes_(graph_, made)) return false;
    return GraphEditor(graph_).change(loss, std::move(made)).ok();  // scores [N, C, d...] stay
  }

  Graph graph_;
  const TakesNode& takes_;
  GraphUses uses_;
  std::set<ValueId> kept_;
};

}  // namespace

Graph join_loss_gradient(const Graph& graph, const TakesNode& takes) {
  return LossJoiner(graph, takes).run();
}

namespace {

// Below that, finding the rows costs more than leaving them out saves.
constexpr int64_t kMinRows = 128;
constexpr int64_t kMinClasses = 1024;

bool may_leave_rows_out(const Graph& graph, const Node& node) {
  if (!is_operator(node, "ofsdp.SoftmaxCrossEntropyLossWithGradient")) return false;
  const Shape& scores = graph.value(node.inputs[1]).desc.shape;
  return node.attributes.has("ignore_index") && scores[0] >= kMinRows && scores[1] >= kMinClasses;
}

// One loss and the products around it, in a graph copy.
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
    // Training reads no file output, so the gradient may overwrite one.
    for (ValueId id : trained_values(graph_)) wanted_.insert(id);
  }

  // with_views needs these.
  const std::vector<size_t>& readers(ValueId id) const { return uses_.readers(id); }
  const Node& node(size_t i) const { return graph_.nodes[i]; }

  // Returns the graph with products over kept rows; nothing if something prevents it.
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

  // Returns the product that makes the scores, directly or through a view with no other reader; -1:
  // none.
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

  // Finds the products that read the score gradient. Other readers may only be sums over all rows,
  // which do not depend on row order.
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

  // Moves the nodes that make `id` before the first product; returns false if `id` depends on that
  // product.
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

  // Inserts ofsdp.KeptRows before the first product; later nodes read the outputs.
  bool find_rows(size_t first, const Node& loss) {
    if (!move_before(first, loss.inputs[2])) return false;
    const Attributes attributes{{"ignore_index", loss.attributes.i("ignore_index", 0)},
                                {"classes", scores_.shape[1]}};
    const auto made =
        add(before_[first], "ofsdp.KeptRows", loss.name, {loss.inputs[2]}, attributes, 2,
            node(first).backward);  // true for a recomputed product
    if (made.empty()) return false;
    rows_ = made[0];
    labels_ = made[1];
    return true;
  }

  // Returns the kept rows for an operand at node i; 0: none. The score gradient has them already.
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

  // Puts the rows that `made` computes back to their places, in the value that it made before.
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

  // Adds a node at a place; returns nothing if `takes` refuses it.
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
  std::vector<bool> moved_;  // per node, as are the next two
  std::vector<std::vector<Node>> before_, after_;
  std::set<ValueId> wanted_;
  TensorDesc scores_;
  std::vector<ValueId> gradient_;  // the score gradient and its views
  std::set<size_t> products_;      // products that read them
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

namespace {

// Returns the rows of a chunk ([Note: chunks of scores] in passes.h), or 0: the scores stay whole.
int64_t chunk_rows(const TensorDesc& scores, const TensorDesc& weights,
                   const PassSwitches& switches, bool wide_gradients) {
  constexpr int64_t kMaxChunks = 8, kRound = 64;  // rounded, parts are aligned as tensors are
  const int64_t rows = scores.shape[0];
  const int64_t chunks =
      std::min(kMaxChunks, rows / std::max<int64_t>(switches.least_chunk_rows, 1));
  if (scores.bytes() < switches.least_chunked_bytes || chunks < 2) return 0;
  const size_t sums = wide_gradients || weights.dtype == DType::kFloat32
                          ? 0
                          : static_cast<size_t>(weights.numel()) * sizeof(float);
  const size_t saved = scores.bytes() - scores.bytes() / static_cast<size_t>(chunks);
  if (switches.least_chunked_bytes > 0 && saved < sums + scores.bytes() / 4) return 0;
  const int64_t each = (rows + chunks - 1) / chunks;
  return each < kRound ? each : (each + kRound - 1) / kRound * kRound;
}

// One loss and the products around it.
class ChunkedLoss {
 public:
  ChunkedLoss(const Graph& source, size_t loss)
      : graph_(source), uses_(source), loss_(loss), dropped_(source.nodes.size()) {
    for (ValueId id : trained_values(graph_)) wanted_.insert(id);
  }

  // with_views needs these.
  const std::vector<size_t>& readers(ValueId id) const { return uses_.readers(id); }
  const Node& node(size_t i) const { return graph_.nodes[i]; }

  // Returns the graph with one node for all of them; nothing if something prevents it.
  std::optional<Graph> run(const TakesNode& takes, const PassSwitches& switches, bool wide) {
    const Node& loss = node(loss_);
    if (!find_product(loss.inputs[1]) || !find_readers(loss.outputs[1])) return std::nullopt;
    const Node& product = node(product_);
    const int64_t chunk =
        chunk_rows(scores(), graph_.value(product.inputs[kB]).desc, switches, wide);
    if (chunk == 0) return std::nullopt;
    Graph made = graph_;
    Node joined = loss;
    joined.op = &made.registry->get("ofsdp.LinearCrossEntropy");
    joined.attributes.set("transB", int64_t{turned()});
    joined.attributes.set("chunk", chunk);
    joined.inputs = {
        loss.inputs[0],     product.inputs[kA], product.inputs[kB],          loss.inputs[2],
        input(product, kC), input(loss, 3),     input(product, kRowsOperand)};
    while (joined.inputs.back() == 0) joined.inputs.pop_back();
    joined.outputs = {loss.outputs[0], made_[kByInput], made_[kByWeights], made_[kByBias]};
    if (!takes(made, joined)) return std::nullopt;
    if (!GraphEditor(made).change(made.nodes[loss_], std::move(joined)).ok()) return std::nullopt;
    ++made.fused["chunked_loss"];
    return without_dropped(std::move(made));
  }

 private:
  enum Operand : size_t { kA, kB, kC, kRowsOperand };
  enum Gradient : size_t { kByInput, kByWeights, kByBias, kGradients };

  static ValueId input(const Node& node, size_t i) {
    return i < node.inputs.size() ? node.inputs[i] : 0;
  }
  const TensorDesc& scores() const { return graph_.value(node(product_).outputs[0]).desc; }
  bool turned() const { return node(product_).attributes.i("transB", 0) != 0; }

  // A product without factors or steps after it.
  bool is_plain_product(const Node& n) const {
    const bool of_kind = is_operator(n, "Gemm") || is_operator(n, "ofsdp.KeptRowsGemm");
    return of_kind && n.attributes.f("alpha", 1) == 1.0f && n.attributes.f("beta", 1) == 1.0f &&
           !n.attributes.has("ofsdp_activation");
  }

  // Finds the product that makes the scores, directly or through views, for no other reader.
  bool find_product(ValueId id) {
    while (uses_.readers(id).size() == 1 && !wanted_.contains(id) && uses_.maker(id) >= 0) {
      const auto maker = static_cast<size_t>(uses_.maker(id));
      const Node& n = node(maker);
      dropped_[maker] = true;
      if (n.op->view) {
        id = n.inputs[0];
        continue;
      }
      product_ = maker;
      const ValueId bias = input(n, kC);
      const TensorDesc& made = graph_.value(id).desc;
      return is_plain_product(n) && n.attributes.i("transA", 0) == 0 &&
             made == graph_.value(node(loss_).inputs[1]).desc &&
             (bias == 0 || graph_.value(bias).desc.numel() == made.shape[1]);
    }
    return false;
  }

  bool find_readers(ValueId gradient) {
    for (ValueId view : with_views(*this, gradient)) {
      if (wanted_.contains(view)) return false;
      for (size_t reader : uses_.readers(view)) {
        dropped_[reader] = true;
        if (!node(reader).op->view && !take_gradient(node(reader), view)) return false;
      }
    }
    return true;
  }

  // Notes which gradient the node makes of d scores; returns false if it is none of the three.
  bool take_gradient(const Node& n, ValueId d) {
    const Node& product = node(product_);
    if (is_operator(n, "ofsdp.SumTo")) {
      const ValueId bias = input(product, kC);
      return bias != 0 && graph_.value(n.outputs[0]).desc == graph_.value(bias).desc &&
             note(kByBias, n);
    }
    if (!is_plain_product(n) || input(n, kC) != 0 || graph_.value(d).desc != scores() ||
        input(n, kRowsOperand) != input(product, kRowsOperand)) {
      return false;
    }
    const bool turns_a = n.attributes.i("transA", 0) != 0;
    const bool turns_b = n.attributes.i("transB", 0) != 0;
    if (!turns_a) {
      return n.inputs[kA] == d && n.inputs[kB] == product.inputs[kB] && turns_b != turned() &&
             note(kByInput, n);
    }
    const ValueId x = product.inputs[kA];
    return !turns_b && n.inputs[kA] == (turned() ? d : x) && n.inputs[kB] == (turned() ? x : d) &&
           note(kByWeights, n);
  }

  bool note(Gradient which, const Node& n) {
    return made_[which] == 0 && (made_[which] = n.outputs[0]) != 0;
  }

  Graph without_dropped(Graph made) const {
    std::vector<Node> nodes;
    for (size_t i = 0; i < made.nodes.size(); ++i) {
      if (!dropped_[i]) nodes.push_back(std::move(made.nodes[i]));
    }
    made.nodes = std::move(nodes);
    std::erase_if(made.outputs, [&](ValueId id) {
      return uses_.maker(id) >= 0 && dropped_[static_cast<size_t>(uses_.maker(id))];
    });
    return made;
  }

  const Graph& graph_;
  GraphUses uses_;
  size_t loss_, product_ = 0;
  std::vector<bool> dropped_;  // per node
  std::set<ValueId> wanted_;
  std::array<ValueId, kGradients> made_{};
};

}  // namespace

Graph chunk_losses(const Graph& graph, const TakesNode& takes, const PassSwitches& switches,
                   bool wide_gradients) {
  Graph made = graph;
  for (size_t i = 0; i < made.nodes.size(); ++i) {
    if (!is_operator(made.nodes[i], "ofsdp.SoftmaxCrossEntropyLossWithGradient")) continue;
    if (std::optional<Graph> joined = ChunkedLoss(made, i).run(takes, switches, wide_gradients)) {
      made = *std::move(joined);
    }
  }
  return made;
}

namespace {

class NormAddends {
 public:
  NormAddends(const Graph& source, const TakesNode& takes)
      : graph_(source), takes_(takes), uses_(source), taken_(source.nodes.size()) {
    for (ValueId id : trained_values(graph_)) kept_.insert(id);
    kept_.insert(graph_.outputs.begin(), graph_.outputs.end());
  }

  Graph run() {
    for (size_t i = 0; i < taken_.size(); ++i) join(i);
    std::vector<Node> nodes;
    for (size_t i = 0; i < taken_.size(); ++i) {
      if (!taken_[i]) nodes.push_back(std::move(graph_.nodes[i]));
    }
    graph_.nodes = std::move(nodes);
    return std::move(graph_);
  }

 private:
  // Joins the Add that alone reads node i's result, if the other operand exists before that node.
  void join(size_t i) {
    const Node& norm = graph_.nodes[i];
    if (!is_operator(norm, "ofsdp.LayerNormalizationGrad") || norm.inputs.size() > kNormAddend)
      return;
    const ValueId dx = norm.outputs[0];
    if (dx == 0 || kept_.contains(dx) || uses_.readers(dx).size() != 1) return;
    const size_t reader = uses_.readers(dx)[0];
    const Node& sum = graph_.nodes[reader];
    if (!is_operator(sum, "Add")) return;
    const ValueId other = sum.inputs[sum.inputs[0] == dx ? 1 : 0], result = sum.outputs[0];
    const TensorDesc& desc = graph_.value(dx).desc;
    if (graph_.value(other).desc != desc || graph_.value(result).desc != desc) return;
    if (uses_.maker(other) >= static_cast<int>(i)) return;  // i itself makes the scale's gradient
    Node made = norm;
    made.inputs.resize(kNormAddend, 0);
    made.inputs.push_back(other);
    made.outputs[0] = result;
    if (!takes_(graph_, made)) return;
    if (!GraphEditor(graph_).change(graph_.nodes[i], std::move(made)).ok()) return;
    taken_[reader] = true;
    ++graph_.fused["addend"];
  }

  Graph graph_;
  const TakesNode& takes_;
  GraphUses uses_;
  std::vector<bool> taken_;  // per node: joined with a normalization
  std::set<ValueId> kept_;
};

}  // namespace

Graph join_norm_addends(const Graph& graph, const TakesNode& takes) {
  return NormAddends(graph, takes).run();
}

}  // namespace ofsdp::importer
