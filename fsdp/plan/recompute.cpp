#include <algorithm>
#include <map>
#include <set>

#include "fsdp/plan/plan.h"
#include "importer/graph/graph.h"

namespace ofsdp::fsdp {
namespace {

class Recomputation {
 public:
  Recomputation(const Graph& source, const std::vector<Segment>& segments,
                const std::vector<SegmentRecompute>& choice)
      : source_(source), segments_(segments), choice_(choice) {}

  Graph run() {
    find_segments();
    find_saved();
    graph_ = source_;
    graph_.nodes.clear();
    clones_.resize(segments_.size());
    std::vector<Node> backward;
    for (size_t n = static_cast<size_t>(forward_); n < source_.nodes.size(); ++n) {
      backward.push_back(redirected(n));
    }
    for (int n = 0; n < forward_; ++n)
      graph_.nodes.push_back(source_.nodes[static_cast<size_t>(n)]);
    place(backward);
    return std::move(graph_);
  }

 private:
  void find_segments() {
    forward_ = forward_end(source_);
    segment_of_.assign(source_.nodes.size(), -1);
    for (size_t s = 0; s < segments_.size(); ++s) {
      for (int n = segments_[s].first; n <= segments_[s].last; ++n) {
        segment_of_[static_cast<size_t>(n)] = static_cast<int>(s);
      }
    }
  }

  // Marks the values that are read outside their segment and backward.
  void find_saved() {
    for (int n = 0; n < forward_; ++n) {
      for (ValueId id : source_.nodes[static_cast<size_t>(n)].inputs) {
        const int maker = uses_.maker(id);
        const bool inside = maker >= 0 && segment(maker) == segment(n);
        if (!inside) saved_[static_cast<size_t>(id)] = true;
      }
    }
    for (const LossTerm& term : source_.terms) saved_[static_cast<size_t>(term.value)] = true;
    for (const Carried& c : source_.carried) saved_[static_cast<size_t>(c.next)] = true;
  }

  int segment(int node) const { return segment_of_[static_cast<size_t>(node)]; }

  bool is_cloned(ValueId id) const {
    const int maker = uses_.maker(id);
    if (maker < 0 || saved_[static_cast<size_t>(id)] || segment(maker) < 0) return false;
    // Rows must not be joined twice.
    const OpDef& op = *source_.nodes[static_cast<size_t>(maker)].op;
    if (joins_rows(op) || runs_without_rows(op)) return false;
    const SegmentRecompute how = choice_[static_cast<size_t>(segment(maker))];
    if (how == SegmentRecompute::kNone) return false;
    return how == SegmentRecompute::kAll || !op.costly;
  }

  Node redirected(size_t n) {
    Node node = source_.nodes[n];
    for (ValueId& id : node.inputs) id = recomputed(id);
    if (node.inputs == source_.nodes[n].inputs) return node;
    const Status asked = check_outputs(graph_, node);
    OFSDP_CHECK(asked.ok(), "{}", asked.message());
    return node;
  }

  // Returns the value that backward must read: the same one, or a clone's output.
  ValueId recomputed(ValueId id) {
    if (!is_cloned(id)) return id;
    const auto n = static_cast<size_t>(uses_.maker(id));
    if (const auto it = cloned_values_.find(id); it != cloned_values_.end()) return it->second;
    Node clone = redirected(n);
    clone.backward = true;
    for (ValueId& output : clone.outputs) {
      if (output == 0) continue;
      const ValueId fresh = GraphEditor(graph_).add_value(source_.value(output));
      cloned_values_[output] = fresh;
      made_by_[fresh] = segment(static_cast<int>(n));
      output = fresh;
    }
    clones_[static_cast<size_t>(segment(static_cast<int>(n)))].emplace(static_cast<int>(n),
                                                                       std::move(clone));
    return cloned_values_.at(id);
  }

  // Puts a segment's clones, in order, before the first backward node that reads one.
  void place(const std::vector<Node>& backward) {
    for (const Node& node : backward) {
      for (ValueId id : node.inputs) {
        const auto it = made_by_.find(id);
        if (it != made_by_.end()) place_segment(it->second);
      }
      graph_.nodes.push_back(node);
    }
  }

  void place_segment(int s) {
    auto& clones = clones_[static_cast<size_t>(s)];
    for (auto& [n, clone] : clones) graph_.nodes.push_back(std::move(clone));
    clones.clear();
  }

  const Graph& source_;
  const std::vector<Segment>& segments_;
  const std::vector<SegmentRecompute>& choice_;
  int forward_ = 0;
  std::vector<int> segment_of_;  // per node
  const GraphUses uses_{source_};
  std::vector<bool> saved_ = std::vector<bool>(source_.values.size(), false);  // per value
  Graph graph_;
  std::map<ValueId, ValueId> cloned_values_;
  std::map<ValueId, int> made_by_;           // a clone's value -> segment
  std::vector<std::map<int, Node>> clones_;  // per segment: by node
};

}  // namespace

int forward_end(const Graph& graph) {
  const auto first = std::ranges::find_if(graph.nodes, &Node::backward);
  return static_cast<int>(first - graph.nodes.begin());
}

std::vector<Segment> segments(const Graph& training, const Plan& plan) {
  std::vector<int> unit_of(training.values.size(), -1);
  for (const Unit& unit : plan.units) {
    for (const auto* params : {&unit.params, &unit.frozen}) {
      for (const UnitParam& p : *params) {
        const ValueId value = training.parameters[static_cast<size_t>(p.parameter)].value;
        unit_of[static_cast<size_t>(value)] = unit.id;
      }
    }
  }
  std::vector<Segment> list;
  const int forward = forward_end(training);
  for (int n = 0; n < forward; ++n) {
    const Node& node = training.nodes[static_cast<size_t>(n)];
    if (node.op->view) {
      unit_of[static_cast<size_t>(node.outputs[0])] = unit_of[static_cast<size_t>(node.inputs[0])];
    }
    int unit = -1;
    for (ValueId id : node.inputs) unit = std::max(unit, unit_of[static_cast<size_t>(id)]);
    if (list.empty() || (unit >= 0 && list.back().unit >= 0 && unit != list.back().unit)) {
      list.push_back({unit, n, n});
    }
    list.back().last = n;
    if (list.back().unit < 0) list.back().unit = unit;
  }
  for (Segment& segment : list) {
    const bool outer = segment.unit >= 0 && plan.units[static_cast<size_t>(segment.unit)].outer;
    if (segment.unit == plan.root || outer) segment.unit = -1;
  }
  return list;
}

std::vector<SegmentRecompute> recompute_choice(const std::vector<Segment>& segments, int level) {
  std::vector<SegmentRecompute> choice;
  int full = level - 1;
  for (const Segment& segment : segments) {
    if (level == 0 || segment.unit < 0) {
      choice.push_back(SegmentRecompute::kNone);
    } else {
      choice.push_back(full-- > 0 ? SegmentRecompute::kAll : SegmentRecompute::kCheap);
    }
  }
  return choice;
}

int max_recomputation(const std::vector<Segment>& segments) {
  return 1 + static_cast<int>(std::ranges::count_if(segments, [](auto& s) { return s.unit >= 0; }));
}

Graph recompute(const Graph& training, const std::vector<Segment>& segments,
                const std::vector<SegmentRecompute>& choice) {
  return Recomputation(training, segments, choice).run();
}

}  // namespace ofsdp::fsdp
