#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "importer/passes/joined_nodes.h"
#include "kernels/core/chain.h"

namespace ofsdp::importer {
namespace {

// Appends a step whose operands have new numbers, unless it is there; returns its value's number.
int add_once(kernels::Chain& chain, kernels::ChainStep step, const std::vector<int>& numbers) {
  for (int* operand : {&step.a, &step.b}) {
    if (*operand >= 0) *operand = numbers[static_cast<size_t>(*operand)];
  }
  const auto same = std::ranges::find_if(chain.steps, [&](const kernels::ChainStep& s) {
    return s.op == step.op && s.a == step.a && s.b == step.b && s.number == step.number;
  });
  if (same == chain.steps.end()) return chain.add(step);
  return chain.inputs + static_cast<int>(same - chain.steps.begin());
}

// A gradient's operand: an input that stays, or a result of the forward chain.
struct SlopeInput {
  int input = -1, result = -1;
};

// Returns the forward steps with the gradient's after them, and the forward result as the last of
// the results. `places`: of the forward inputs among the inputs that stay. `rounds`: results that
// the forward chain stored had fewer bits than its steps.
std::optional<kernels::Chain> repeated(const kernels::Chain& forward,
                                       const std::vector<int>& places,
                                       const kernels::Chain& gradient,
                                       const std::vector<SlopeInput>& operands, bool rounds) {
  kernels::Chain made;
  made.inputs = static_cast<int>(
      std::ranges::count_if(operands, [](const SlopeInput& o) { return o.input >= 0; }));
  std::vector<int> numbers = places, slopes;
  for (const kernels::ChainStep& s : forward.steps) numbers.push_back(add_once(made, s, numbers));
  const auto result = [&](int i) {
    return numbers[static_cast<size_t>(forward.results[static_cast<size_t>(i)])];
  };
  for (const SlopeInput& o : operands) {
    if (o.input >= 0) {
      slopes.push_back(o.input);
    } else {
      const int value = result(o.result);
      slopes.push_back(rounds ? made.add({kernels::ChainOp::kRound, value}) : value);
    }
  }
  for (const kernels::ChainStep& s : gradient.steps) slopes.push_back(add_once(made, s, slopes));
  for (const int r : gradient.results) made.results.push_back(slopes[static_cast<size_t>(r)]);
  made.results.push_back(result(0));
  if (made.steps.size() > kernels::Chain::kMaxSteps) return std::nullopt;
  return made;
}

class ChainRepeater {
 public:
  ChainRepeater(const Graph& source, const TakesNode& takes)
      : graph_(source),
        takes_(takes),
        uses_(source),
        moved_(source.nodes.size(), false),
        after_(source.nodes.size()) {}

  const Node& node(size_t i) const { return graph_.nodes[i]; }
  const std::vector<size_t>& readers(ValueId id) const { return uses_.readers(id); }

  Graph run() {
    for (size_t i = 0; i < moved_.size(); ++i) {
      if (node(i).op->full_name() == "ofsdp.Chain" && !node(i).backward) repeat(i);
    }
    std::vector<Node> ordered;
    for (size_t i = 0; i < moved_.size(); ++i) {
      if (!moved_[i]) ordered.push_back(std::move(graph_.nodes[i]));
      for (Node& follower : after_[i]) ordered.push_back(std::move(follower));
    }
    graph_.nodes = std::move(ordered);
    return std::move(graph_);
  }

 private:
  // A backward node that reads the result, or a view of it.
  struct Reader {
    size_t node = 0;
    ValueId reads = 0;
  };

  void repeat(size_t chain) {
    const ValueId y = node(chain).outputs[0];
    const std::vector<Reader> found = backward_readers(y);
    const auto gradient = found.empty() ? std::nullopt : gradient_of(chain, found);
    if (!gradient || !can_follow(found, *gradient)) return;
    const ValueId again = returned_again(chain, *gradient);
    if (again == 0) return;
    std::map<ValueId, ValueId> views{{y, again}};
    for (const Reader& r : found) follow(r, *gradient, views);
    ++graph_.fused["chain_again"];
  }

  std::vector<Reader> backward_readers(ValueId y) const {
    std::vector<Reader> found;
    for (const ValueId view : with_views(*this, y)) {
      for (const size_t i : readers(view)) {
        if (node(i).backward) found.push_back({i, view});
      }
    }
    std::ranges::sort(found, {}, &Reader::node);
    return found;
  }

  // Returns the ofsdp.ChainGrad that reads all inputs of the chain and not its result.
  std::optional<size_t> gradient_of(size_t chain, const std::vector<Reader>& found) const {
    const Node& forward = node(chain);
    for (const size_t i : readers(forward.inputs[0])) {
      const Node& n = node(i);
      const bool reads_all = std::ranges::all_of(forward.inputs, [&](ValueId id) {
        return std::ranges::find(n.inputs, id) != n.inputs.end();
      });
      const bool reads_result =
          std::ranges::any_of(found, [&](const Reader& r) { return r.node == i; });
      const bool fits = is_operator(n, "ofsdp.ChainGrad") && n.backward && !moved_[i] &&
                        graph_.value(n.outputs[0]).desc == graph_.value(forward.outputs[0]).desc;
      if (fits && reads_all && !reads_result) return i;
    }
    return std::nullopt;
  }

  // Returns whether the readers may stand after the gradient: nothing before it needs them.
  bool can_follow(const std::vector<Reader>& found, size_t gradient) const {
    return std::ranges::all_of(found, [&](const Reader& r) {
      if (moved_[r.node] || node(r.node).op->view) return false;
      if (r.node > gradient) return true;
      return std::ranges::all_of(node(r.node).outputs, [&](ValueId id) {
        return id == 0 || std::ranges::all_of(readers(id), [&](size_t i) { return i > gradient; });
      });
    });
  }

  // The place among the chain's results after the first of a value that only the gradient reads;
  // -1: it is none.
  int spared(const Node& forward, ValueId id, size_t gradient) const {
    const auto found = std::find(forward.outputs.begin() + 1, forward.outputs.end(), id);
    const bool alone = readers(id) == std::vector<size_t>{gradient};
    return id != 0 && alone && found != forward.outputs.end()
               ? static_cast<int>(found - forward.outputs.begin())
               : -1;
  }

  // Gives the gradient one more output, and returns it; 0: the nodes do not take it. Results that
  // the chain saved for the gradient alone are found again, too.
  ValueId returned_again(size_t chain, size_t gradient) {
    Node forward = node(chain), made = node(gradient);
    const auto of_forward = *kernels::Chain::parse(forward.attributes, forward.inputs.size());
    const auto of_gradient = *kernels::Chain::parse(made.attributes, made.inputs.size());
    std::vector<ValueId> inputs;
    std::vector<SlopeInput> operands;
    for (const ValueId id : made.inputs) {
      const int result = spared(forward, id, gradient);
      operands.push_back({result < 0 ? static_cast<int>(inputs.size()) : -1, result});
      if (result < 0) inputs.push_back(id);
    }
    std::vector<int> places;
    for (const ValueId id : forward.inputs) {
      places.push_back(static_cast<int>(std::ranges::find(inputs, id) - inputs.begin()));
    }
    const bool rounds = graph_.value(forward.outputs[0]).desc.dtype != DType::kFloat32;
    const auto both = repeated(of_forward, places, of_gradient, operands, rounds);
    if (!both) return 0;
    Value value = graph_.value(forward.outputs[0]);
    value.name += ".again";
    const ValueId again = GraphEditor(graph_).add_value(std::move(value));
    set_chain(made, *both);
    made.inputs = std::move(inputs);
    made.outputs.push_back(again);
    forget_spared(forward, of_forward, gradient);
    const bool taken = check_outputs(graph_, made).ok() && takes_(graph_, made) &&
                       check_outputs(graph_, forward).ok() && takes_(graph_, forward) &&
                       GraphEditor(graph_).change(graph_.nodes[gradient], std::move(made)).ok() &&
                       GraphEditor(graph_).change(graph_.nodes[chain], std::move(forward)).ok();
    if (!taken) graph_.values.pop_back();
    return taken ? again : 0;
  }

  static void set_chain(Node& node, const kernels::Chain& chain) {
    for (const auto& [name, attribute] : chain.attributes().all()) {
      node.attributes.set(name, attribute);
    }
  }

  void forget_spared(Node& forward, kernels::Chain chain, size_t gradient) const {
    for (size_t i = forward.outputs.size(); i-- > 1;) {
      if (spared(forward, forward.outputs[i], gradient) < 0) continue;
      forward.outputs.erase(forward.outputs.begin() + static_cast<std::ptrdiff_t>(i));
      chain.results.erase(chain.results.begin() + static_cast<std::ptrdiff_t>(i));
    }
    set_chain(forward, chain);
  }

  // Lets the reader take the result again, through views of its own.
  void follow(const Reader& r, size_t gradient, std::map<ValueId, ValueId>& views) {
    const ValueId again = view_of(r.reads, gradient, views);
    Node made = node(r.node);
    std::ranges::replace(made.inputs, r.reads, again);
    if (r.node > gradient) {
      const Status changed = GraphEditor(graph_).change(graph_.nodes[r.node], std::move(made));
      OFSDP_CHECK(changed.ok(), "{}", changed.message());
    } else {
      moved_[r.node] = true;
      after_[gradient].push_back(std::move(made));
    }
  }

  ValueId view_of(ValueId id, size_t gradient, std::map<ValueId, ValueId>& views) {
    if (const auto found = views.find(id); found != views.end()) return found->second;
    Node view = node(static_cast<size_t>(uses_.maker(id)));
    view.inputs[0] = view_of(view.inputs[0], gradient, views);
    Value value = graph_.value(id);
    value.name += ".again";
    view.outputs = {GraphEditor(graph_).add_value(std::move(value))};
    view.name += ".again";
    view.backward = true;
    views[id] = view.outputs[0];
    after_[gradient].push_back(std::move(view));
    return views[id];
  }

  Graph graph_;
  const TakesNode& takes_;
  GraphUses uses_;
  std::vector<bool> moved_;               // per node: stands in after_
  std::vector<std::vector<Node>> after_;  // per node
};

}  // namespace

Graph repeat_chains(const Graph& graph, const TakesNode& takes) {
  if (graph.registry->find(kOwnDomain, "ChainGrad") == nullptr) return graph;
  return ChainRepeater(graph, takes).run();
}

}  // namespace ofsdp::importer
