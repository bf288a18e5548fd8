#include "runtime/program/lower.h"

#include <algorithm>
#include <utility>

#include "importer/graph/rank_rows.h"
#include "kernels/core/device_values.h"

namespace ofsdp::runtime {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

Operand with(Operand operand, bool writes) {
  operand.writes = writes;
  return operand;
}

// Orders of streams count the elements of what a rank owns as float32, whatever their type.
Operand as_floats(Operand operand, bool writes) {
  operand.dtype = DType::kFloat32;
  return with(operand, writes);
}

Operand moved(Operand operand, int64_t elements, int64_t count) {
  operand.offset += elements * static_cast<int64_t>(dtype_size(operand.dtype));
  operand.count = count;
  return operand;
}

class Lowering {
 public:
  Lowering(const ProgramPlan& program, const LoweringContext& context)
      : program_(program),
        graph_(program.graph),
        options_(program.options),
        context_(context),
        plan_(context.plan),
        offloads_(plan_.offload != CpuOffload::kNone),
        several_(plan_.world > 1),
        storage_(storage_of(graph_)),
        parameter_(parameter_behind(graph_)),
        unit_of_(unit_of_parameter(graph_, plan_)),
        element_(graph_.parameters.size(), 0),
        gradient_of_(graph_.values.size(), -1),
        join_of_(graph_.values.size(), -1),
        awaited_(plan_.units.size()) {
    for (const Unit& unit : plan_.units) {
      places_.push_back(unit_places(plan_, unit, context.rank, context.memory.units[at(unit.id)]));
      whole_.push_back(places_.back().whole);
      for (const UnitParam& p : unit.params) element_[at(p.parameter)] = p.offset;
      for (const UnitParam& p : unit.frozen) {
        element_[at(p.parameter)] = unit.padded_numel + p.offset;
      }
      const int64_t offset = program.memory.accumulate_offset[at(unit.id)];
      own_.push_back(offset < 0 ? Operand{} : arena(offset, unit.padded_numel, plan_.param_dtype));
    }
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      if (graph_.parameters[i].gradient != 0) {
        gradient_of_[at(graph_.parameters[i].gradient)] = static_cast<int>(i);
      }
    }
    int joins = 0;
    for (const Node& node : graph_.nodes) {
      if (joins_rows(*node.op)) join_of_[at(node.outputs[0])] = joins++;
    }
  }

  LoweredProgram run() {
    made_.operations.reserve(program_.schedule.steps.size() * 5 / 4);  // few steps take several
    for (size_t s = 0; s < program_.schedule.steps.size(); ++s) {
      const size_t begin = made_.operations.size();
      add_step(s);
      if (made_.operations.size() == begin) continue;
      made_.operations[begin].begins_step = true;
      made_.operations.back().ends_step = true;
    }
    if (offloads_ && options_.training && options_.last_micro) update_on_host();
    for (const LossTerm& term : graph_.terms()) made_.losses.push_back(value(term.value, false));
    if (graph_.matches != 0) made_.matches = value(graph_.matches, false);
    for (const Measured& m : graph_.measured) made_.measured.push_back(value(m.rows, false));
    return std::move(made_);
  }

 private:
  Operation& add(OpKind kind, Lane lane, int unit = -1) {
    Operation& made = made_.operations.emplace_back();
    made.kind = kind;
    made.lane = lane;
    made.step = step_;
    made.unit = unit;
    made.first = options_.first_micro;
    made.last = options_.last_micro;
    return made;
  }

  void add_step(size_t s) {
    const Step& step = program_.schedule.steps[s];
    step_ = static_cast<int>(s);
    switch (step.kind) {
      case StepKind::kRun:
        return run_node(s, step.index);
      case StepKind::kGather:
        return unshard(s, step.index);
      case StepKind::kFree:
        return;
      case StepKind::kCheckLoss:
        return check_loss();
      case StepKind::kCarry:
        return buffer(step.index);
      case StepKind::kAcquire:
        return acquire(step.index);
      case StepKind::kAccumulate:
        return accumulate(step.index);
      case StepKind::kPost:
        return post(step.index, step.index);
      case StepKind::kPostShard:
        return post(step.index, shard_channel(step.index));
      case StepKind::kReduce:
        return reduce(step.index, false);
      case StepKind::kReduceUpdate:
        return reduce(step.index, true);
      case StepKind::kAllReduce:
        return all_reduce(step.index);
      case StepKind::kClip:
        return clip();
      case StepKind::kUpdate:
        return update(step.index);
      case StepKind::kFactor:
        return factor(step.index);
      case StepKind::kOrthogonalize:
        return orthogonalize(s, step.index);
      case StepKind::kTrust:
        return trust();
      case StepKind::kApply:
        return apply(step.index);
      case StepKind::kPostRows:
        return post_rows(step.index);
      case StepKind::kJoinRows:
        return join_rows(step.index);
      case StepKind::kWatch:
        return watch();
    }
  }

  // Nodes.

  void run_node(size_t s, int n) {
    const Node& node = graph_.nodes[at(n)];
    Operation& made = add(OpKind::kRun, Lane::kCompute);
    made.run = runs_++;
    made.node = n;
    made.rowless = runs_without_rows(*node.op);
    for (const ValueId id : node.inputs) made.operands.push_back(value(id, false));
    for (const ValueId id : node.outputs) made.operands.push_back(value(id, true));
    if (program_.memory.step_offset[s] < 0) return;
    const auto bytes = static_cast<int64_t>(program_.kernels[at(n)]->workspace_bytes());
    made.operands.push_back(
        with(arena(program_.memory.step_offset[s], bytes, DType::kUInt8), true));
  }

  static Operand arena(int64_t offset, int64_t count, DType dtype) {
    return {.area = Area::kArena, .offset = offset, .count = count, .dtype = dtype};
  }

  // At the present step: a parameter of a unit is where the unit's latest Gather put it.
  Operand value(ValueId id, bool writes) const {
    Operand made;
    if (id == 0) return made;
    const ValueId root = storage_[at(id)];
    const TensorDesc& desc = graph_.value(id).desc;
    if (const int p = gradient_of_[at(root)]; p >= 0) {
      made = in_unit(p, gradients(unit_of_[at(p)]));
    } else if (const int k = join_of_[at(root)]; k >= 0) {
      made = {.area = Area::kShared, .offset = static_cast<int64_t>(context_.memory.joins[at(k)])};
    } else {
      made = place(root);
    }
    made.count = desc.extent();
    made.pitch = desc.pitch;
    made.dtype = desc.dtype;
    made.writes = writes;
    return made;
  }

  Operand place(ValueId root) const {
    switch (graph_.value(root).kind) {
      case ValueKind::kAbsent:
        return {};
      case ValueKind::kInput:
        return {.area = Area::kInput,
                .offset = std::ranges::find(graph_.inputs, root) - graph_.inputs.begin()};
      case ValueKind::kLossWeight:
        return loss_weight(root);
      case ValueKind::kActivation: {
        const int64_t offset = program_.memory.value_offset[at(root)];
        return offset < 0 ? Operand{} : arena(offset, 0, DType::kFloat32);
      }
      case ValueKind::kConstant:
        return kept(root);
      case ValueKind::kParameter:
        break;
    }
    const int parameter = parameter_[at(root)];
    const int unit = unit_of_[at(parameter)];
    if (unit < 0) return kept(root);
    OFSDP_CHECK(whole_[at(unit)].area != Area::kNone, "u{} is used before its Gather", unit);
    return in_unit(parameter, whole_[at(unit)]);
  }

  Operand loss_weight(ValueId root) const {
    const std::vector<LossTerm> terms = graph_.terms();
    const auto term = std::ranges::find(terms, root, &LossTerm::weight) - terms.begin();
    return {.area = Area::kLossWeight, .offset = term * static_cast<int64_t>(sizeof(float))};
  }

  Operand kept(ValueId root) const {
    return {.area = Area::kKept,
            .offset = static_cast<int64_t>(context_.kept.offset(graph_, root))};
  }

  Operand in_unit(int parameter, Operand base) const {
    base.dtype = plan_.param_dtype;
    return moved(base, element_[at(parameter)], 0);
  }

  // Nodes write there: the unit's buffer, or this micro-batch's own.
  Operand gradients(int unit) const {
    if (own_[at(unit)].area != Area::kNone) return own_[at(unit)];
    Operand buffer = places_[at(unit)].slot;
    buffer.dtype = plan_.param_dtype;
    return buffer;
  }

  void check_loss() {
    const bool agrees = context_.on_device && several_;
    Operation& made = add(OpKind::kCheckLoss, agrees ? Lane::kCommunication : Lane::kCompute);
    for (const LossTerm& term : graph_.terms()) made.operands.push_back(value(term.value, false));
    made.operands.push_back(run_state());
  }

  static Operand run_state() {
    return {.area = Area::kRunState, .count = 1, .dtype = DType::kUInt8, .writes = true};
  }

  void buffer(int k) {
    const Carried& c = graph_.carried[at(k)];
    const ValueId parameter = graph_.parameters[at(c.parameter)].value;
    Operation& made = add(OpKind::kBuffer, Lane::kCompute);
    made.src = value(c.next, false);
    made.dst = kept(parameter);
    made.dst.count = graph_.value(parameter).desc.numel();
    made.dst.dtype = graph_.value(parameter).desc.dtype;
    made.operands = {made.src, with(made.dst, true)};
    made.rowless = std::ranges::any_of(graph_.nodes, [&](const Node& node) {
      return runs_without_rows(*node.op) && std::ranges::count(node.outputs, c.next) > 0;
    });
  }

  // Rows of all ranks. A sum over ranks whose parts are zero but for each rank's own is a gather;
  // so the transports that sum gradients carry rows as well.

  Operation& of_rows(OpKind kind, int n) {
    const ValueId joined = graph_.nodes[at(n)].outputs[0];
    Operation& made = add(kind, Lane::kCommunication);
    made.node = n;
    made.src = value(joined, false);
    made.dst = value(joined, true);
    made.group = all_ranks();
    made.channel = common_channel() + kChannelsOfAll + join_of_[at(joined)];
    made.part = {-1, made.dst.count / plan_.world};
    return made;
  }

  // A device's exchange begins as soon as this rank's rows are there: the nodes up to the first
  // reader run next to it, and that reader waits for it by an event of its stream.
  void post_rows(int n) {
    if (!context_.on_device) of_rows(OpKind::kAwait, n);
    Operation& made = of_rows(OpKind::kPlaceRows, n);
    made.run = runs_++;
    made.operands = {value(graph_.nodes[at(n)].inputs[0], false), made.dst};
    of_rows(context_.on_device ? OpKind::kJoinRows : OpKind::kPost, n);
  }

  void join_rows(int n) {
    if (!context_.on_device) of_rows(OpKind::kJoinRows, n);
  }

  // Parameters.

  void unshard(size_t s, int u) {
    const Unit& unit = plan_.units[at(u)];
    const UnitPlaces& places = places_[at(u)];
    const UnitOffsets& offsets = context_.memory.units[at(u)];
    if (const int64_t offset = program_.memory.step_offset[s]; offset >= 0) {
      whole_[at(u)] =
          arena(offset, unit.padded_numel + unit.frozen_padded_numel, plan_.param_dtype);
    }
    const Operand all = whole_[at(u)];
    const RankGroup group = plan_.shard_group(unit, context_.rank);
    const int64_t place = group.index_of(context_.rank);
    const int64_t frozen = unit.frozen_padded_numel / group.count;
    const Span mine{place * places.span.numel, places.span.numel};
    const Span mine_frozen{place * frozen, frozen};
    const Operand trained_all = moved(all, 0, unit.padded_numel);
    const Operand frozen_all = moved(all, unit.padded_numel, unit.frozen_padded_numel);
    const bool fetches = unit.plan.unshard == Unshard::kFetch;
    if (fetches) {
      const OffloadedUnit& from = context_.memory.offload.units[at(u)];
      fetch(u, from.rest, trained_all, mine);
      fetch(u, from.frozen, frozen_all, mine_frozen);
    }
    const auto unshard_part = [&](const Operand& src, const Operand& dst, const Span& span) {
      Operation& made = add(OpKind::kUnshard, Lane::kCommunication, u);
      made.src = src;
      made.dst = dst;
      made.group = group;
      made.part = span;
      made.converts = !fetches && !src.begins_at(moved(dst, span.begin, 0));
      made.copied = fetches;
      return &made;
    };
    Operation* made = unshard_part(places.owned, trained_all, mine);
    made->stride = offsets.owned_stride;
    made->operands = {as_floats(places.owned, false),
                      with(moved(all, 0, unit.padded_numel + unit.frozen_padded_numel),
                           several_ || !places.owned.begins_at(all))};
    if (unit.frozen_padded_numel > 0)
      unshard_part(places.frozen, frozen_all, mine_frozen)->frozen = true;
  }

  void fetch(int u, size_t from, const Operand& all, const Span& part) {
    if (part.numel == 0) return;
    Operation& made = add(OpKind::kCopyUp, Lane::kCommunication, u);
    made.dst = moved(all, part.begin, part.numel);
    made.src = host(from, part.numel, all.dtype);
  }

  static Operand host(size_t offset, int64_t count, DType dtype) {
    return {.area = Area::kHost,
            .offset = static_cast<int64_t>(offset),
            .count = count,
            .dtype = dtype};
  }

  // Gradients.

  // The channels of the room for matrices: of all ranks, and of those that share a copy; and that
  // of watched norms.
  int common_channel() const { return 2 * static_cast<int>(plan_.units.size()); }
  int common_shard_channel() const { return common_channel() + 1; }
  int watch_channel() const { return common_channel() + 2; }

  int shard_channel(int u) const { return static_cast<int>(plan_.units.size()) + u; }

  RankGroup sums(int u) const { return plan_.summing_group(plan_.units[at(u)], context_.rank); }

  Span unique(int u) const { return plan_.represented(plan_.units[at(u)], context_.rank); }

  Span unique_of_owned(int u) const {
    return {unique(u).begin - places_[at(u)].span.begin, unique(u).numel};
  }

  // A unit that was awaited and has posted nothing since needs no second wait: with many units in
  // few slots, waits would grow with the square of the units.
  void acquire(int u) {
    for (const int other : context_.slots.shares_bytes[at(u)]) {
      if (std::exchange(awaited_[at(other)], 1) != 0) continue;
      Operation& made = add(OpKind::kAwait, Lane::kCompute, u);
      made.channel = other;
      made.group = sums(other);
    }
    Operation& made = add(OpKind::kClear, Lane::kCompute, u);
    made.dst = gradients(u);
    made.gaps = gaps(plan_.units[at(u)]);
    made.operands = {own_[at(u)].area != Area::kNone ? with(made.dst, true)
                                                     : with(places_[at(u)].slot, true)};
  }

  void accumulate(int u) {
    const bool first = options_.first_micro || plan_.units[at(u)].plan.shards_gradients;
    Operation& made = add(first ? OpKind::kConvert : OpKind::kAdd, Lane::kCompute, u);
    made.src = own_[at(u)];
    made.dst = with(places_[at(u)].slot, true);
    made.operands = {made.src, made.dst};
  }

  // The elements that this rank adds up of the unit's buffer.
  void read_buffer(Operation& made, int u) const {
    made.src = places_[at(u)].slot;
    made.part = places_[at(u)].span;
  }

  // Names what is summed over the copies: `part` counts from the begin of `src`, in the order of
  // the group.
  void read_gradient(Operation& made, int u) const {
    const bool shard = plan_.units[at(u)].plan.shards_gradients;
    made.src = shard ? places_[at(u)].gradient : places_[at(u)].slot;
    made.part = {-1, unique(u).numel};
  }

  void post(int u, int channel) {
    const Unit& unit = plan_.units[at(u)];
    Operation& made = add(OpKind::kPost, Lane::kCompute, u);
    made.channel = channel;
    awaited_[at(u)] = 0;
    const bool again = channel != u;
    const bool scatters = unit.plan.shards > 1 || unit.plan.shards_gradients;
    made.group = again ? plan_.replica_group(unit, context_.rank) : sums(u);
    scatters && !again ? read_buffer(made, u) : read_gradient(made, u);
  }

  // Lists what a step that sums or updates touches, for a device's streams.
  std::vector<Operand> touched(int u, bool writes_slot, bool updates) const {
    const UnitPlaces& places = places_[at(u)];
    std::vector<Operand> list{with(places.slot, writes_slot), with(places.gradient, true)};
    if (!updates) return list;
    list.push_back(as_floats(places.owned, true));
    if (plan_.units[at(u)].plan.rounded) list.push_back(with(places.rounded, true));
    for (const Operand& values : places.optimizer) list.push_back(with(values, true));
    return list;
  }

  // A gradient that is summed over copies afterwards is no gradient yet: its norm is taken there.
  void reduce(int u, bool updates) {
    const Unit& unit = plan_.units[at(u)];
    const bool more = !options_.first_micro && unit.plan.shards_gradients;
    const bool complete = options_.last_micro && !unit.plan.sums_copies;
    const OffloadedUnit* host_unit = offloads_ ? &context_.memory.offload.units[at(u)] : nullptr;
    const bool passes = host_unit != nullptr && host_unit->passes_slots;
    const bool keeps = host_unit != nullptr ? host_unit->summed : !updates;
    Operand sum = places_[at(u)].gradient;
    int slot = -1;
    bool waits = false;
    if (passes) {
      slot = slots_taken_ % context_.memory.offload.slots;
      waits = slots_taken_++ >= context_.memory.offload.slots;
      sum = {.area = Area::kState,
             .offset = static_cast<int64_t>(context_.memory.offload_slots +
                                            at(slot) * context_.memory.offload.slot_bytes),
             .count = places_[at(u)].span.numel};
      if (more) {
        Operation& made = add(OpKind::kCopyUp, Lane::kCommunication, u);
        made.src = host(host_unit->gradient, sum.count, DType::kFloat32);
        made.dst = sum;
        made.slot = waits ? slot : -1;
      }
    }
    const bool sends = passes || (offloads_ && (updates || (complete && options_.clip)));
    // One that passes slots frees its slot by an event of its own.
    const Lane lane = sends && !passes ? Lane::kDownload : Lane::kCommunication;
    Operation& made = add(OpKind::kReduce, lane, u);
    read_buffer(made, u);
    made.group = sums(u);
    made.channel = u;
    made.unique = unique_of_owned(u);
    made.operands = touched(u, several_, updates);
    // A device sums slices one after the other, in memory; where there is none, in its own room.
    if (keeps || (context_.on_device && plan_.across_ranks)) made.dst = with(sum, true);
    if (more) made.onto = sum;
    made.copied = passes && more;
    made.slot = passes && !more && waits ? slot : -1;
    made.stages = {
        .ordered = plan_.across_ranks,
        .round_to = !plan_.across_ranks || complete ? plan_.reduce_dtype : DType::kFloat32,
        .adds = more && !plan_.across_ranks,
        .positive_zero = complete && plan_.across_ranks,
        .norm = complete,
        .exact = complete && plan_.across_ranks && options_.clip,
        .update = updates && !offloads_};
    const Operand reduced =
        keeps ? sum
              : moved(places_[at(u)].slot, places_[at(u)].span.begin, places_[at(u)].span.numel);
    if (sends) send_down(u, reduced, lane, slot);
    if (offloads_ && updates) signal(u, lane);
  }

  void send_down(int u, const Operand& gradient, Lane lane, int slot) {
    const OffloadedUnit& to = context_.memory.offload.units[at(u)];
    Operation& made = add(OpKind::kCopyDown, lane, u);
    made.src = gradient;
    made.dst = host(to.gradient, gradient.count, to.landed);
    made.slot = slot;
  }

  void signal(int u, Lane lane) { add(OpKind::kSignal, lane, u); }

  void all_reduce(int u) {
    const Unit& unit = plan_.units[at(u)];
    const Lane lane = offloads_ && options_.clip ? Lane::kDownload : Lane::kCommunication;
    Operation& made = add(OpKind::kAllReduce, lane, u);
    read_gradient(made, u);
    made.dst = with(places_[at(u)].gradient, true);
    made.group = plan_.replica_group(unit, context_.rank);
    made.channel = unit.plan.shards_gradients ? shard_channel(u) : u;
    made.unique = unique_of_owned(u);
    made.operands = touched(u, true, false);
    made.stages = {.round_to = plan_.reduce_dtype, .norm = true};
    if (lane == Lane::kDownload) send_down(u, places_[at(u)].gradient, lane, -1);
  }

  void clip() {
    Operation& made = add(OpKind::kClip, Lane::kCommunication);
    made.stages.exact = plan_.across_ranks;
    made.operands = {run_state()};
    if (offloads_) signal(-1, Lane::kCommunication);
  }

  // Until all have taken their parts of a sum over copies: an optimizer that keeps the gradient
  // writes there.
  void await_copies(int u) {
    const Unit& unit = plan_.units[at(u)];
    if (unit.plan.copies == 1 || plan_.across_ranks) return;
    Operation& made = add(OpKind::kAwait, Lane::kCompute, u);
    made.channel = unit.plan.shards_gradients ? shard_channel(u) : u;
    made.group = plan_.replica_group(unit, context_.rank);
  }

  // If the norm decides, an offload has sent its gradient down before.
  void update(int u) {
    if (!offloads_) {
      if (!options_.matrices.empty()) await_copies(u);
      Operation& made = add(OpKind::kUpdate, Lane::kCommunication, u);
      made.src = places_[at(u)].gradient;
      made.part = places_[at(u)].span;
      made.operands = touched(u, several_, true);
      return;
    }
    if (options_.clip) return;
    send_down(u, places_[at(u)].gradient, Lane::kDownload, -1);
    made_.operations.back().operands = touched(u, several_, true);
    signal(u, Lane::kDownload);
  }

  // The room where units sum and gather their matrices: this one's part of it.
  Operand matrix_room(int64_t first, int64_t count) const {
    const auto offset = static_cast<int64_t>(context_.memory.matrices);
    return moved({.area = Area::kShared, .offset = offset}, first, count);
  }

  RankGroup all_ranks() const { return {0, plan_.world, 1}; }

  // Posts src, a part of the room, and begins its sum.
  Operation& sum_room(int u, const Operand& src, OpKind kind, int channel, const RankGroup& group,
                      const Span& part) {
    room_channel_ = channel;
    room_group_ = group;
    for (const OpKind next : {OpKind::kPost, kind}) {
      Operation& made = add(next, next == kind ? Lane::kCommunication : Lane::kCompute, u);
      made.channel = channel;
      made.group = group;
      made.src = src;
      made.part = part;
    }
    return made_.operations.back();
  }

  // Adds up src over all ranks, in place.
  void sum_over_ranks(int u, const Operand& src) {
    const Span part{-1, src.count / plan_.world};
    Operation& made = sum_room(u, src, OpKind::kAllReduce, common_channel(), all_ranks(), part);
    made.dst = with(src, true);
    made.operands = {made.dst};
  }

  void copy(int u, const Operand& src, const Operand& dst) {
    Operation& made = add(OpKind::kConvert, Lane::kCommunication, u);
    made.src = src;
    made.dst = with(dst, true);
    made.operands = {made.src, made.dst};
  }

  // Until nobody reads the room any more.
  void await_room(int u) {
    if (room_channel_ < 0) return;
    Operation& made = add(OpKind::kAwait, Lane::kCompute, u);
    made.channel = std::exchange(room_channel_, -1);
    made.group = room_group_;
  }

  // Puts the unit's whole gradient into the room, where it is not whole already; returns where it
  // is.
  Operand gather_gradient(int u) {
    const Unit& unit = plan_.units[at(u)];
    const UnitPlaces& places = places_[at(u)];
    if (unit.plan.shards == 1) return places.gradient;
    if (!std::exchange(met_, true)) add(OpKind::kMeet, Lane::kCommunication, u);
    Operation& made = add(OpKind::kUnshard, Lane::kCommunication, u);
    const bool whole_slot = !unit.plan.shards_gradients;  // the gradient is its place in the slot
    made.src = places.gradient;
    made.dst = with(matrix_room(0, unit.padded_numel), true);
    made.group = plan_.shard_group(unit, context_.rank);
    made.part = places.span;
    made.stride = whole_slot ? places.gradient.bytes() : 0;
    made.converts = true;
    made.operands = {made.src, made.dst};
    return made.dst;
  }

  // Sums have an order of their own under across_ranks: that of the whole unit.
  void factor(int u) {
    const UnitPlaces& places = places_[at(u)];
    const MatrixRoom& room = context_.memory.matrix_rooms[at(u)];
    const bool apart = several_ && !plan_.across_ranks;
    const Operand sums = matrix_room(room.gathered, room.sums);
    Operand gradient = moved(places.gradient, unique_of_owned(u).begin, unique(u).numel);
    Span part = unique(u);
    await_room(u);
    if (plan_.across_ranks) {
      gradient = gather_gradient(u);
      part = {0, plan_.units[at(u)].padded_numel};
    }
    Operation& made = add(OpKind::kSums, Lane::kCommunication, u);
    made.src = gradient;
    made.part = part;
    made.dst = with(sums, true);
    made.operands = {made.src, made.dst};
    if (apart) sum_over_ranks(u, sums);
    Operation& then = add(OpKind::kFactors, Lane::kCommunication, u);
    then.src = sums;
    then.operands = {sums};
    for (const Operand& values : places.optimizer) then.operands.push_back(with(values, true));
  }

  // In the room, from where all get their elements of all matrices; a lone rank needs no copy.
  void orthogonalize(size_t s, int u) {
    const Unit& unit = plan_.units[at(u)];
    const Operand gradient = places_[at(u)].gradient;
    const bool shards = unit.plan.shards > 1;
    Operand whole = gradient;
    if (several_) {
      await_room(u);
      whole = gather_gradient(u);
      const Operand room = matrix_room(0, unit.padded_numel);
      if (!shards) copy(u, std::exchange(whole, room), room);
    }
    const RankGroup group = shards ? plan_.shard_group(unit, context_.rank) : all_ranks();
    Operation& made = add(OpKind::kOrthogonalize, Lane::kCommunication, u);
    made.group = group;
    made.dst = with(whole, true);
    made.onto = arena(program_.memory.step_offset[s],
                      static_cast<int64_t>(options_.matrices[at(u)].work_bytes), DType::kUInt8);
    made.operands = {made.dst, with(made.onto, true)};
    if (!several_) return;
    if (shards) {
      Operation& sum =
          sum_room(u, whole, OpKind::kReduce, common_shard_channel(), group, places_[at(u)].span);
      sum.dst = with(gradient, true);
      sum.operands = {sum.src, sum.dst};
      return;
    }
    sum_over_ranks(u, whole);
    copy(u, whole, gradient);
  }

  void trust() {
    if (offloads_) return;  // the host takes the steps
    Operation& made = add(OpKind::kTrust, Lane::kCommunication);
    for (const UnitPlaces& places : places_) {
      made.operands.push_back(as_floats(places.owned, false));
      for (const Operand& values : places.optimizer) made.operands.push_back(values);
    }
  }

  void apply(int u) {
    if (offloads_) return;
    Operation& made = add(OpKind::kApply, Lane::kCommunication, u);
    made.part = places_[at(u)].span;
    made.operands = {as_floats(places_[at(u)].owned, true)};
    if (plan_.units[at(u)].plan.rounded) {
      made.operands.push_back(with(places_[at(u)].rounded, true));
    }
    for (const Operand& values : places_[at(u)].optimizer) made.operands.push_back(values);
  }

  void watch() {
    Operation& made = add(OpKind::kWatch, Lane::kCommunication);
    made.channel = watch_channel();
    made.group = all_ranks();
    const auto count = static_cast<int64_t>(context_.memory.watch_slot_bytes / sizeof(float));
    made.dst = {.area = Area::kShared,
                .offset = static_cast<int64_t>(context_.memory.watch_slot),
                .count = count,
                .writes = true};
    made.src = with(made.dst, false);
    made.part = {-1, count / plan_.world};
    made.operands = {made.dst};
  }

  // The host waits for the decision or, where nothing decides, for each gradient in turn.
  void update_on_host() {
    const auto add_host = [this](OpKind kind, int unit) {
      Operation& made = made_.host.emplace_back();
      made.kind = kind;
      made.unit = unit;
      return &made;
    };
    if (options_.clip) add_host(OpKind::kAwait, -1);
    for (const Step& step : program_.schedule.steps) {
      if (step.kind != StepKind::kReduceUpdate && step.kind != StepKind::kUpdate) continue;
      if (!options_.clip) add_host(OpKind::kAwait, step.index);
      Operation* made = add_host(OpKind::kHostUpdate, step.index);
      const OffloadedUnit& of = context_.memory.offload.units[at(step.index)];
      if (plan_.offload == CpuOffload::kParams) continue;
      made->src = host(of.rest, places_[at(step.index)].span.numel, plan_.rest_dtype);
      made->dst = with(places_[at(step.index)].owned, true);
    }
    if (options_.parameter_norms) add_host(OpKind::kTrust, -1);
  }

  const ProgramPlan& program_;
  const Graph& graph_;
  const CompileOptions& options_;
  const LoweringContext& context_;
  const Plan& plan_;
  bool offloads_, several_;
  std::vector<ValueId> storage_;
  std::vector<int> parameter_;      // per value: the parameter whose bytes it shows, or -1
  std::vector<int> unit_of_;        // per parameter
  std::vector<int64_t> element_;    // per parameter: its first, of an unsharded unit
  std::vector<int> gradient_of_;    // per value: the parameter whose gradient it is, or -1
  std::vector<int> join_of_;        // per value: which of the joined rows it is, or -1
  std::vector<char> awaited_;       // per unit: its latest post, in this program
  std::vector<UnitPlaces> places_;  // per unit
  std::vector<Operand> whole_;      // per unit: where the latest Gather put it
  std::vector<Operand> own_;        // per unit: this micro-batch's gradients, or none
  int step_ = -1, runs_ = 0, slots_taken_ = 0;
  bool met_ = false;       // before a unit's gradient was gathered
  int room_channel_ = -1;  // whose ranks may still read the room
  RankGroup room_group_;
  LoweredProgram made_;
};

}  // namespace

LoweredProgram lower(const ProgramPlan& program, const LoweringContext& context) {
  return Lowering(program, context).run();
}

OffloadTraffic offload_traffic(const LoweredProgram& program) {
  OffloadTraffic sum;
  for (const auto* list : {&program.operations, &program.host}) {
    for (const Operation& op : *list) {
      if (op.kind == OpKind::kCopyUp || op.kind == OpKind::kHostUpdate) sum.up += op.src.bytes();
      if (op.kind == OpKind::kCopyDown) sum.down += op.dst.bytes();
    }
  }
  if (!program.host.empty()) sum.down += sizeof(ofsdp_run_state);
  return sum;
}

std::string text(const LoweredProgram& program) {
  std::string out;
  for (const Operation& op : program.operations) out += format_text("{:4} {}\n", op.step, text(op));
  for (const Operation& op : program.host) out += format_text("host {}\n", text(op));
  return out;
}

}  // namespace ofsdp::runtime
