#include "runtime/program/value_storage.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "importer/graph/graph.h"

namespace ofsdp::runtime {
namespace {

class StorageFinder {
 public:
  explicit StorageFinder(const Graph& graph)
      : graph_(graph),
        storage_(graph.values.size()),
        becomes_(graph.values.size(), 0),
        bound_(has_own_place(graph)),
        last_(graph.values.size(), -1) {
    std::iota(storage_.begin(), storage_.end(), 0);
  }

  std::vector<ValueId> run() {
    for (const Node& node : graph_.nodes) {
      if (node.op->view) at(storage_, node.outputs[0]) = at(storage_, node.inputs[0]);
    }
    for (const Parameter& p : graph_.parameters) at(becomes_, p.gradient) = p.gradient;
    find_last_uses();
    for (int n = static_cast<int>(graph_.nodes.size()) - 1; n >= 0; --n) join(n);
    for (ValueId& id : storage_) id = gradient_or_itself(id);
    return std::move(storage_);
  }

 private:
  template <typename T>
  static typename std::vector<T>::reference at(std::vector<T>& values, ValueId id) {
    return values[static_cast<size_t>(id)];
  }

  void find_last_uses() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      for (const ValueId id : graph_.nodes[n].inputs) use(id, static_cast<int>(n));
    }
    constexpr int kEnd = std::numeric_limits<int>::max();
    for (const ValueId id : graph_.outputs) use(id, kEnd);
    for (const LossTerm& term : graph_.terms()) use(term.value, kEnd);
    for (const Carried& c : graph_.carried) use(c.next, kEnd);
    for (const Measured& m : graph_.measured) use(m.rows, kEnd);
    use(graph_.matches, kEnd);
  }

  void use(ValueId id, int node) { at(last_, at(storage_, id)) = node; }

  // Visits nodes from last to first to find all parts of a sum.
  void join(int n) {
    const Node& node = graph_.nodes[static_cast<size_t>(n)];
    const auto output = static_cast<size_t>(node.op->inplace_output);
    if (output >= node.outputs.size()) return;
    const ValueId gradient = at(becomes_, at(storage_, node.outputs[output]));
    if (gradient == 0) return;
    for (const int k : node.op->inplace_inputs) {
      if (k >= static_cast<int>(node.inputs.size())) continue;
      const ValueId part = at(storage_, node.inputs[static_cast<size_t>(k)]);
      if (!may_become(part, gradient, n)) continue;
      at(becomes_, part) = gradient;
      return;
    }
  }

  bool may_become(ValueId part, ValueId gradient, int n) {
    const Value &from = graph_.value(part), &to = graph_.value(gradient);
    if (from.kind != ValueKind::kActivation || at(bound_, part) || at(last_, part) != n) {
      return false;
    }
    if (from.desc.dtype != to.desc.dtype || from.desc.bytes() != to.desc.bytes()) return false;
    return std::ranges::count_if(graph_.nodes[static_cast<size_t>(n)].inputs,
                                 [&](ValueId id) { return at(storage_, id) == part; }) == 1;
  }

  ValueId gradient_or_itself(ValueId id) {
    const ValueId gradient = at(becomes_, id);
    return gradient != 0 ? gradient : id;
  }

  const Graph& graph_;
  std::vector<ValueId> storage_;
  std::vector<ValueId> becomes_;  // per storage: the gradient that owns the slot, or 0
  std::vector<bool> bound_;
  std::vector<int> last_;  // per storage: the last node that reads it
};

}  // namespace

std::vector<ValueId> storage_of(const Graph& graph) { return StorageFinder(graph).run(); }

std::vector<bool> has_own_place(const Graph& graph) {
  std::vector<bool> own(graph.values.size(), false);
  for (const Parameter& p : graph.parameters) own[static_cast<size_t>(p.gradient)] = true;
  for (const Node& node : graph.nodes) {
    if (joins_rows(*node.op)) own[static_cast<size_t>(node.outputs[0])] = true;
  }
  return own;
}

int64_t reads_of(const Node& node, const std::vector<ValueId>& storage, ValueId root) {
  return std::ranges::count_if(
      node.inputs, [&](ValueId id) { return storage[static_cast<size_t>(id)] == root; });
}

}  // namespace ofsdp::runtime
