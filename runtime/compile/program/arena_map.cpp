#include "runtime/compile/program/arena_map.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "importer/graph/graph.h"
#include "kernels/core/memory.h"

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
    for (const LossTerm& term : graph_.terms) use(term.value, kEnd);
    for (const Carried& c : graph_.carried) use(c.next, kEnd);
    for (const Measured& m : graph_.measured) use(m.rows, kEnd);
    use(graph_.matches, kEnd);
  }

  void use(ValueId id, int node) { at(last_, at(storage_, id)) = node; }

  // Visits nodes from last to first, so that all parts of a sum are found.
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

class ArenaMapper {
 public:
  ArenaMapper(const Graph& graph, const Plan& plan, const Schedule& schedule,
              const std::vector<size_t>& workspace, const std::vector<MatrixSteps>& matrices)
      : graph_(graph),
        plan_(plan),
        schedule_(schedule),
        workspace_(workspace),
        matrices_(matrices),
        storage_(storage_of(graph)),
        last_use_(graph.values.size(), -1),
        piece_of_(graph.values.size(), -1),
        bound_(has_own_place(graph)) {
    memory_.value_offset.assign(graph.values.size(), -1);
    memory_.step_offset.assign(schedule.steps.size(), -1);
    memory_.accumulate_offset.assign(plan.units.size(), -1);
  }

  ArenaMap run() {
    find_last_uses();
    std::vector<int> open(plan_.units.size(), -1), writing(plan_.units.size(), -1);
    for (int s = 0; s < static_cast<int>(schedule_.steps.size()); ++s) {
      const Step& step = schedule_.steps[static_cast<size_t>(s)];
      const auto index = static_cast<size_t>(step.index);
      if (step.kind == StepKind::kRun) place_node(s, index);
      if (step.kind == StepKind::kGather &&
          plan_.units[index].plan.residency != Residency::kUpdate) {
        open[index] = add_unit(index, s, Kind::kGathered);
      }
      if (step.kind == StepKind::kOrthogonalize) add_work(s, matrices_[index].work_bytes);
      if (step.kind == StepKind::kFree) pieces_[static_cast<size_t>(open[index])].last = s;
      if (step.kind == StepKind::kAcquire) writing[index] = s;
      if (step.kind == StepKind::kAccumulate) {
        const int piece = add_unit(index, writing[index], Kind::kActivation);
        pieces_[static_cast<size_t>(piece)].last = s;
        accumulates_.emplace_back(index, piece);
      }
    }
    finish();
    return std::move(memory_);
  }

 private:
  enum class Kind { kActivation, kGathered, kWorkspace };

  int add_piece(size_t bytes, int first, int last, Kind kind) {
    pieces_.push_back({align_up(bytes, kTensorAlignment), first, last, 0});
    kinds_.push_back(kind);
    return static_cast<int>(pieces_.size()) - 1;
  }

  void add_work(int step, size_t bytes) {
    steps_.emplace_back(static_cast<size_t>(step), add_piece(bytes, step, step, Kind::kWorkspace));
  }

  int add_unit(size_t unit, int step, Kind kind) {
    const Unit& u = plan_.units[unit];
    const int64_t frozen = kind == Kind::kGathered ? u.frozen_padded_numel : 0;
    const size_t bytes =
        static_cast<size_t>(u.padded_numel + frozen) * dtype_size(plan_.param_dtype);
    const int piece = add_piece(bytes, step, step, kind);
    if (kind == Kind::kGathered) steps_.emplace_back(static_cast<size_t>(step), piece);
    return piece;
  }

  void find_last_uses() {
    const int end = static_cast<int>(schedule_.steps.size()) - 1;
    for (int s = 0; s <= end; ++s) {
      const Step& step = schedule_.steps[static_cast<size_t>(s)];
      if (step.kind == StepKind::kCheckLoss) use_terms(s);
      if (step.kind == StepKind::kCarry)
        use(graph_.carried[static_cast<size_t>(step.index)].next, s);
      if (step.kind != StepKind::kRun && step.kind != StepKind::kPostRows) continue;
      const Node& node = graph_.nodes[static_cast<size_t>(step.index)];
      for (ValueId id : node.inputs) use(id, s);
      for (ValueId id : node.outputs) use(id, s);
    }
    if (graph_.matches != 0) {  // read when the micro-batch is over
      use(graph_.matches, end);
      use_terms(end);
    }
    for (const Measured& m : graph_.measured) {
      use(m.rows, end);
      use_terms(end);
    }
  }

  void use_terms(int step) {
    for (const LossTerm& term : graph_.terms) use(term.value, step);
  }

  void use(ValueId id, int step) {
    int& last = last_use_[static_cast<size_t>(storage_[static_cast<size_t>(id)])];
    last = std::max(last, step);
  }

  void place_node(int s, size_t n) {
    const Node& node = graph_.nodes[n];
    if (workspace_[n] > 0) add_work(s, workspace_[n]);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (id == 0 || bound_[static_cast<size_t>(storage_[static_cast<size_t>(id)])]) continue;
      const bool inplace = static_cast<int>(i) == node.op->inplace_output;
      int piece = inplace ? inplace_piece(node, id, s) : -1;
      const int last = last_use_[static_cast<size_t>(id)];
      if (piece < 0) piece = add_piece(graph_.value(id).desc.bytes(), s, last, Kind::kActivation);
      pieces_[static_cast<size_t>(piece)].last = last;
      piece_of_[static_cast<size_t>(id)] = piece;
    }
  }

  // Returns the piece of an input that the operator may overwrite because it dies here, or -1.
  int inplace_piece(const Node& node, ValueId output, int s) const {
    for (int k : node.op->inplace_inputs) {
      if (k >= static_cast<int>(node.inputs.size())) continue;
      const ValueId root = storage_[static_cast<size_t>(node.inputs[static_cast<size_t>(k)])];
      const int piece = piece_of_[static_cast<size_t>(root)];
      if (piece < 0 || last_use_[static_cast<size_t>(root)] != s) continue;
      if (graph_.value(root).desc.bytes() != graph_.value(output).desc.bytes()) continue;
      if (reads_of(node, storage_, root) == 1) return piece;
    }
    return -1;
  }

  void finish() {
    memory_.arena_bytes = place(pieces_);
    for (size_t id = 0; id < piece_of_.size(); ++id) {
      if (piece_of_[id] >= 0) memory_.value_offset[id] = offset(piece_of_[id]);
    }
    for (const auto& [step, piece] : steps_) memory_.step_offset[step] = offset(piece);
    for (const auto& [unit, piece] : accumulates_) memory_.accumulate_offset[unit] = offset(piece);
    find_peak();
  }

  int64_t offset(int piece) const {
    return static_cast<int64_t>(pieces_[static_cast<size_t>(piece)].offset);
  }

  void find_peak() {
    const size_t steps = schedule_.steps.size();
    std::vector<std::array<size_t, 3>> begins(steps + 1), ends(steps + 1);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const auto kind = static_cast<size_t>(kinds_[i]);
      begins[static_cast<size_t>(pieces_[i].first)][kind] += pieces_[i].bytes;
      ends[static_cast<size_t>(pieces_[i].last)][kind] += pieces_[i].bytes;
    }
    size_t most = 0;
    std::array<size_t, 3> live{};
    for (size_t s = 0; s < steps; ++s) {
      for (size_t k = 0; k < live.size(); ++k)
        live[k] += begins[s][k] - (s > 0 ? ends[s - 1][k] : 0);
      const size_t sum = live[0] + live[1] + live[2];
      memory_.live.push_back(sum);
      if (sum <= most) continue;
      most = sum;
      memory_.peak_step = static_cast<int>(s);
      memory_.peak_activations = live[0];
      memory_.peak_gathered = live[1];
      memory_.peak_workspace = live[2];
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const Schedule& schedule_;
  const std::vector<size_t>& workspace_;
  const std::vector<MatrixSteps>& matrices_;
  std::vector<ValueId> storage_;
  std::vector<int> last_use_;  // per storage: the last step that touches it
  std::vector<int> piece_of_;  // per storage
  std::vector<bool> bound_;    // has_own_place
  std::vector<MemoryPiece> pieces_;
  std::vector<Kind> kinds_;
  std::vector<std::pair<size_t, int>> steps_;        // step, piece
  std::vector<std::pair<size_t, int>> accumulates_;  // unit, piece
  ArenaMap memory_;
};

// Steps of a schedule between which a unit's slot must not be used by another, inclusive; per unit.
using SlotLives = std::vector<std::pair<int, int>>;

SlotLives slot_lives(const Plan& plan, const Schedule& schedule, bool reduces_at_once) {
  const int end = static_cast<int>(schedule.steps.size());
  SlotLives lives(plan.units.size(), {0, end});
  std::pair<int, int>* reduced = nullptr;  // the last one
  for (int s = 0; s < end; ++s) {
    const Step& step = schedule.steps[static_cast<size_t>(s)];
    if (step.index < 0 || traits(step.kind).subject != StepSubject::kUnit) continue;
    if (!plan.units[static_cast<size_t>(step.index)].plan.shards_gradients) continue;
    std::pair<int, int>& life = lives[static_cast<size_t>(step.index)];
    const bool writes = step.kind == StepKind::kAcquire || step.kind == StepKind::kAccumulate;
    if (writes) life.first = s;
    if (step.kind == StepKind::kReduce || step.kind == StepKind::kReduceUpdate) {
      life.second = s;
      if (reduces_at_once && reduced != nullptr) reduced->second = s;
      reduced = &life;
    }
  }
  return lives;
}

// Sets offsets greedily by size, such that slots do not overlap while both live in any schedule.
GradientSlots placed_slots(const std::vector<size_t>& bytes, const std::vector<SlotLives>& lives) {
  std::vector<size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  const auto both_live = [&](size_t a, size_t b) {
    return std::ranges::any_of(lives, [&](const SlotLives& of) {
      return of[a].first <= of[b].second && of[b].first <= of[a].second;
    });
  };
  GradientSlots slots;
  slots.offset.resize(bytes.size(), 0);
  std::vector<size_t> placed;  // by offset
  for (const size_t unit : order) {
    if (bytes[unit] == 0) continue;
    size_t offset = 0;
    for (const size_t other : placed) {
      if (!both_live(unit, other)) continue;
      if (slots.offset[other] >= offset + bytes[unit]) break;
      offset = std::max(offset, slots.offset[other] + bytes[other]);
    }
    slots.offset[unit] = offset;
    slots.bytes = std::max(slots.bytes, offset + bytes[unit]);
    const auto at =
        std::ranges::upper_bound(placed, offset, {}, [&](size_t u) { return slots.offset[u]; });
    placed.insert(at, unit);
  }
  return slots;
}

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

size_t place(std::vector<MemoryPiece>& pieces) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order,
                           [&](size_t a, size_t b) { return pieces[a].bytes > pieces[b].bytes; });
  // Placed pieces by offset: bytes [begin, end), and in a list of their own, since each piece scans
  // it, the steps [first, last].
  std::vector<std::pair<size_t, size_t>> extents;
  std::vector<std::pair<int, int>> lives;
  size_t total = 0;
  for (size_t index : order) {
    MemoryPiece& piece = pieces[index];
    if (piece.bytes == 0) continue;
    size_t offset = 0;  // the lowest wide enough gap between pieces alive at the same time
    for (size_t k = 0; k < lives.size(); ++k) {
      if (lives[k].second < piece.first || piece.last < lives[k].first) continue;
      if (extents[k].first >= offset + piece.bytes) break;
      offset = std::max(offset, extents[k].second);
    }
    piece.offset = offset;
    total = std::max(total, offset + piece.bytes);
    const auto at =
        std::ranges::upper_bound(extents, offset, {}, &std::pair<size_t, size_t>::first);
    lives.insert(lives.begin() + (at - extents.begin()), {piece.first, piece.last});
    extents.insert(at, {offset, offset + piece.bytes});
  }
  return total;
}

ArenaMap map_arena(const Graph& graph, const Plan& plan, const Schedule& schedule,
                   const std::vector<size_t>& workspace, const std::vector<MatrixSteps>& matrices) {
  return ArenaMapper(graph, plan, schedule, workspace, matrices).run();
}

GradientSlots map_gradient_slots(const Plan& plan, const std::vector<const Schedule*>& schedules,
                                 bool reduces_at_once) {
  std::vector<SlotLives> lives;
  for (const Schedule* schedule : schedules) {
    lives.push_back(slot_lives(plan, *schedule, reduces_at_once));
  }
  std::vector<size_t> bytes;
  for (const Unit& unit : plan.units) {
    bytes.push_back(
        align_up(static_cast<size_t>(unit.padded_numel) * dtype_size(unit.plan.gradient_dtype),
                 kTensorAlignment));
  }
  GradientSlots slots = placed_slots(bytes, lives);
  for (size_t a = 0; a < bytes.size(); ++a) {
    auto& shared = slots.shares_bytes.emplace_back();
    for (size_t u = 0; u < bytes.size(); ++u) {
      if (slots.offset[a] < slots.offset[u] + bytes[u] &&
          slots.offset[u] < slots.offset[a] + bytes[a]) {
        shared.push_back(static_cast<int>(u));
      }
    }
  }
  return slots;
}

JoinSlots map_join_slots(const std::vector<const Graph*>& graphs) {
  std::vector<size_t> most;
  for (const Graph* graph : graphs) {
    size_t k = 0;
    for (const Node& node : graph->nodes) {
      if (!joins_rows(*node.op)) continue;
      if (k == most.size()) most.push_back(0);
      most[k] = std::max(most[k], graph->value(node.outputs[0]).desc.bytes());
      ++k;
    }
  }
  JoinSlots slots;
  for (const size_t bytes : most) {
    slots.offset.push_back(slots.bytes);
    slots.bytes += align_up(bytes, kTensorAlignment);
  }
  return slots;
}

}  // namespace ofsdp::runtime
