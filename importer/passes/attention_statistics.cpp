#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "importer/graph/graph.h"
#include "importer/passes/joined_nodes.h"
#include "kernels/core/planned_operands.h"

namespace ofsdp::importer {
namespace {

// ofsdp.AttentionGrad inputs that are Attention outputs.
enum Output : size_t { kY = 6, kStatistics = 7 };
constexpr std::pair<size_t, size_t> kShared[] = {{1, 0}, {2, 1}, {3, 2}, {4, 3}, {5, 6}};

ValueId at(const std::vector<ValueId>& ids, size_t i) { return i < ids.size() ? ids[i] : 0; }

bool any_from(const std::vector<ValueId>& ids, size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) {
    if (at(ids, i) != 0) return true;
  }
  return false;
}

class Keeper {
 public:
  Keeper(const Graph& source, const TakesNode& takes)
      : graph_(source), takes_(takes), uses_(source) {
    std::set<std::string> forward;  // names that forward nodes make: a clone makes them again
    for (const Node& node : graph_.nodes) {
      for (ValueId id : node.outputs) {
        if (id != 0 && !node.backward) forward.insert(graph_.value(id).name);
      }
      clone_.push_back(node.backward && forward.contains(graph_.value(at(node.outputs, 0)).name));
    }
  }

  const Node& node(size_t i) const { return graph_.nodes[i]; }
  const std::vector<size_t>& readers(ValueId id) const { return uses_.readers(id); }

  Graph run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (is_operator(graph_.nodes[i], "ofsdp.AttentionGrad")) keep_for(i);
    }
    return std::move(graph_);
  }

 private:
  // The value that a gradient reads instead of the forward node's Y.
  struct Kept {
    ValueId y = 0;
    std::vector<int64_t> perm;  // the Transpose in between; empty: none
    size_t last = 0;            // backward node that reads it anyway
  };

  const Node* maker(ValueId id) const {
    const int i = uses_.maker(id);
    return i < 0 ? nullptr : &graph_.nodes[static_cast<size_t>(i)];
  }

  void keep_for(size_t gradient) {
    const auto forward = forward_of(gradient);
    if (!forward) return;
    const auto kept = kept_before(gradient, node(*forward).outputs[0]);
    if (!kept) return;
    Node keeping = with_statistics(node(*forward)), reading = node(gradient);
    const auto descs = infer_outputs(graph_, keeping);
    if (!descs.ok()) return;
    const ValueId statistics = GraphEditor(graph_).add_value(
        {keeping.name + ".statistics", ValueKind::kActivation, (*descs)[1]});
    keeping.outputs[1] = statistics;
    reading.inputs.resize(kStatistics + 1, 0);
    reading.inputs[kY] = kept->y;
    reading.inputs[kStatistics] = statistics;
    if (!kept->perm.empty()) reading.attributes.set("y_perm", kept->perm);
    GraphEditor editor(graph_);
    const bool fit = takes_(graph_, keeping) && takes_(graph_, reading) &&
                     check_outputs(graph_, keeping).ok() &&
                     editor.change(graph_.nodes[gradient], std::move(reading)).ok() &&
                     editor.change(graph_.nodes[*forward], std::move(keeping)).ok();
    if (!fit) return graph_.values.pop_back();
    ++graph_.fused["statistics"];
  }

  Node with_statistics(Node made) const {
    const ValueId lengths = at(made.inputs, 6);
    made.op = graph_.registry->find(kOwnDomain, "AttentionWithStatistics");
    made.inputs.resize(4, 0);
    made.inputs.push_back(lengths);
    while (made.inputs.back() == 0) made.inputs.pop_back();
    made.outputs.resize(1);
    made.outputs.push_back(0);
    return made;
  }

  // Returns the last Attention node before the gradient that fits it.
  std::optional<size_t> forward_of(size_t gradient) {
    const Node& slope = node(gradient);
    if (any_from(slope.inputs, kY, slope.inputs.size())) return std::nullopt;
    for (size_t i = gradient; i-- > 0;) {
      const Node& made = node(i);
      if (!is_operator(made, "Attention") || any_from(made.outputs, 1, made.outputs.size()) ||
          any_from(made.inputs, 4, 6)) {
        continue;
      }
      Attributes expected = made.attributes;
      expected.set("past_length", int64_t{0});
      const auto shared = [&](const auto& pair) {
        return same(at(slope.inputs, pair.first), at(made.inputs, pair.second));
      };
      if (expected.all() == slope.attributes.all() && std::ranges::all_of(kShared, shared)) {
        return i;
      }
    }
    return std::nullopt;
  }

  // Returns whether two values are equal: one value, or one recomputed by the same nodes.
  bool same(ValueId a, ValueId b) {
    std::vector<std::pair<ValueId, ValueId>> pairs;
    std::set<std::pair<ValueId, ValueId>> met;
    const auto meet = [&](ValueId left, ValueId right) {
      if (left == right || same_.contains({left, right})) return;
      if (met.insert({left, right}).second) pairs.push_back({left, right});
    };
    meet(a, b);
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto [left, right] = pairs[i];
      if (!made_alike(left, right)) return false;
      const std::vector<ValueId>&of_left = maker(left)->inputs, &of_right = maker(right)->inputs;
      for (size_t k = 0; k < of_left.size(); ++k) meet(of_left[k], of_right[k]);
    }
    same_.merge(met);
    return true;
  }

  // Returns whether the same operator makes both, from any operands.
  bool made_alike(ValueId a, ValueId b) const {
    const Node *left = maker(a), *right = maker(b);
    if (left == nullptr || right == nullptr) return false;
    const auto place = [](const Node& n, ValueId id) {
      return std::ranges::find(n.outputs, id) - n.outputs.begin();
    };
    return left->op == right->op && left->name == right->name &&
           graph_.value(a).name == graph_.value(b).name &&
           left->attributes.all() == right->attributes.all() &&
           left->inputs.size() == right->inputs.size() && place(*left, a) == place(*right, b);
  }

  // Returns Y or Y transposed, whichever backward keeps longer anyway. If Y is already a
  // Transpose's output, the projection reads Y.
  std::optional<Kept> kept_before(size_t gradient, ValueId y) const {
    std::vector<Kept> found;
    add_kept(gradient, y, {}, found);
    const bool is_transposed = node(gradient).attributes.has(kResultPerm);
    if (!is_transposed) add_transposed(gradient, y, found);
    if (found.empty()) return std::nullopt;
    return *std::ranges::max_element(found, {}, &Kept::last);
  }

  void add_transposed(size_t gradient, ValueId y, std::vector<Kept>& found) const {
    for (ValueId view : with_views(*this, y)) {
      for (size_t i : readers(view)) {
        const Node& reader = node(i);
        const std::vector<int64_t> perm = reader.attributes.ints("perm");
        const bool moves = is_operator(reader, "Transpose") && perm.size() == 4 && perm[3] == 3;
        if (moves && i < gradient && graph_.value(view).desc == graph_.value(y).desc) {
          add_kept(gradient, reader.outputs[0], perm, found);
        }
      }
    }
  }

  void add_kept(size_t gradient, ValueId id, const std::vector<int64_t>& perm,
                std::vector<Kept>& found) const {
    if (graph_.value(id).desc.layout != Layout::kPlain) return;
    const auto last = last_backward_reader(gradient, id);
    if (last) found.push_back({id, perm, *last});
  }

  // Returns the last backward node that reads the bytes directly, not through a view.
  std::optional<size_t> last_backward_reader(size_t gradient, ValueId id) const {
    std::optional<size_t> last;
    for (ValueId view : with_views(*this, id)) {
      for (size_t i : readers(view)) {
        const bool reads = !node(i).op->view && node(i).backward && !clone_[i] && i != gradient;
        if (reads) last = std::max(last.value_or(0), i);
      }
    }
    return last;
  }

  Graph graph_;
  const TakesNode& takes_;
  GraphUses uses_;           // does not know the statistics added later; nobody asks for them
  std::vector<bool> clone_;  // per node
  std::set<std::pair<ValueId, ValueId>> same_;  // pairs known to be equal
};

}  // namespace

Graph keep_attention_statistics(const Graph& graph, const TakesNode& takes) {
  if (graph.registry->find(kOwnDomain, "AttentionWithStatistics") == nullptr) return graph;
  return Keeper(graph, takes).run();
}

}  // namespace ofsdp::importer
