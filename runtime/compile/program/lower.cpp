// lower (lower.h): Lowering goes through the schedule's steps in order and makes the operations of
// each with the addresses that ProgramOperands gives; OperationList collects them. With
// --cpu-offload, update_on_host makes the operations of the host's update too.
#include "runtime/compile/program/lower.h"

#include <algorithm>
#include <utility>

#include "importer/graph/graph.h"
#include "kernels/core/device_values.h"
#include "runtime/compile/program/operands.h"

namespace ofsdp::runtime {
namespace {

// Collects operations and notes step and position in the update.
class OperationList {
 public:
  OperationList(const CompileOptions& options, size_t steps) : options_(options) {
    made_.reserve(steps * 5 / 4);  // few steps take several
  }

  // REQUIRES: the previous step has ended. A step may add no operation.
  void begin(size_t step) {
    begin_ = made_.size();
    step_ = static_cast<int>(step);
  }

  void end() {
    if (made_.size() == begin_) return;
    made_[begin_].begins_step = true;
    made_.back().ends_step = true;
  }

  Operation& add(OpKind kind, Lane lane, int unit = -1) {
    Operation& made = made_.emplace_back();
    made.kind = kind;
    made.lane = lane;
    made.step = step_;
    made.unit = unit;
    made.first = options_.first_micro;
    made.last = options_.last_micro;
    return made;
  }

  std::vector<Operation> take() { return std::move(made_); }

 private:
  const CompileOptions& options_;
  std::vector<Operation> made_;
  size_t begin_ = 0;
  int step_ = -1;
};

// A device slot for a sum over micro-batches that the host keeps.
struct PassedSlot {
  Operand sum;
  int index = -1;
  int awaited = -1;  // equals index if another unit's copy down must free the slot first
};

Operand host_operand(size_t offset, int64_t count, DType dtype) {
  return {
      .area = Area::kHost, .offset = static_cast<int64_t>(offset), .count = count, .dtype = dtype};
}

class Lowering {
 public:
  Lowering(const StepProgram& program, const LoweringContext& context)
      : program_(program),
        graph_(program.graph),
        options_(program.options),
        context_(context),
        plan_(context.plan),
        operands_(program, context),
        made_(program.options, program.schedule.steps.size()),
        awaited_(plan_.units.size()) {}

  LoweredProgram lower_all() {
    for (size_t s = 0; s < program_.schedule.steps.size(); ++s) {
      made_.begin(s);
      lower_step(s, program_.schedule.steps[s]);
      made_.end();
    }
    LoweredProgram made;
    made.operations = made_.take();
    if (offloads() && options_.training && options_.last_micro) made.host = update_on_host();
    add_results(made);
    return made;
  }

 private:
  void lower_step(size_t s, const Step& step) {
    const int i = step.index;
    switch (step.kind) {
#define STEP(kind, subject, traits, timing, lowering, description) \
  case StepKind::k##kind:                                          \
    return lowering;
#include "runtime/compile/program/steps.inc"
    }
  }

  void add_results(LoweredProgram& made) const {
    for (const LossTerm& term : graph_.terms) {
      made.losses.push_back(operands_.value(term.value, false));
    }
    if (graph_.matches != 0) made.matches = operands_.value(graph_.matches, false);
    for (const Measured& m : graph_.measured) {
      made.measured.push_back(operands_.value(m.rows, false));
    }
  }

  // --- plan, graph and operands ---

  Operation& add(OpKind kind, Lane lane, int unit = -1) { return made_.add(kind, lane, unit); }

  bool several_ranks() const { return plan_.world > 1; }
  bool offloads() const { return plan_.offload != CpuOffload::kNone; }
  const Node& node(int n) const { return graph_.nodes[static_cast<size_t>(n)]; }
  const Unit& unit(int u) const { return plan_.units[static_cast<size_t>(u)]; }
  const UnitPlaces& places(int u) const { return operands_.places(u); }

  Channels channels() const { return {static_cast<int>(plan_.units.size())}; }
  // The channel for the sum over copies.
  int copies_channel(int u) const {
    return unit(u).plan.shards_gradients ? channels().gradient_shard(u) : channels().gradient(u);
  }
  RankGroup copies(int u) const { return plan_.replica_group(unit(u), context_.rank); }
  RankGroup shards(int u) const { return plan_.shard_group(unit(u), context_.rank); }
  RankGroup sums(int u) const { return plan_.summing_group(unit(u), context_.rank); }
  RankGroup all_ranks() const { return {0, plan_.world, 1}; }

  // The unique span, counted from the unit's start, and from the shard's start.
  Span unique(int u) const { return plan_.represented(unit(u), context_.rank); }
  Span unique_of_owned(int u) const {
    return {unique(u).begin - places(u).span.begin, unique(u).numel};
  }

  // Returns the owned shard. Device streams count elements as float32 in any dtype.
  Operand owned(int u, bool writes) const {
    Operand made = places(u).owned.written(writes);
    made.dtype = DType::kFloat32;
    return made;
  }
  // Returns all operands if a step sums or updates, for the same streams.
  std::vector<Operand> touched(int u, bool writes_slot, bool updates) const {
    std::vector<Operand> list{places(u).slot.written(writes_slot), places(u).gradient.written()};
    if (!updates) return list;
    list.push_back(owned(u, true));
    if (unit(u).plan.rounded) list.push_back(places(u).rounded.written());
    for (const Operand& values : places(u).optimizer) list.push_back(values.written());
    return list;
  }

  Operand run_state() {
    return {.area = Area::kRunState, .count = 1, .dtype = DType::kUInt8, .writes = true};
  }

  // --- nodes, running statistics, rows joined over all ranks ---

  void run(size_t step, int n) {
    Operation& made = add(OpKind::kRun, Lane::kCompute);
    made.run = runs_++;
    made.node = n;
    made.rowless = runs_without_rows(*node(n).op);
    for (const ValueId id : node(n).inputs) made.operands.push_back(operands_.value(id, false));
    for (const ValueId id : node(n).outputs) made.operands.push_back(operands_.value(id, true));
    const int64_t workspace = program_.memory.step_offset[step];
    if (workspace < 0) return;
    const size_t bytes = program_.kernels[static_cast<size_t>(n)]->workspace_bytes();
    made.operands.push_back(
        arena_operand(workspace, static_cast<int64_t>(bytes), DType::kUInt8).written());
  }

  void check_loss() {
    const bool agrees = context_.on_device && several_ranks();
    Operation& made = add(OpKind::kCheckLoss, agrees ? Lane::kCommunication : Lane::kCompute);
    for (const LossTerm& term : graph_.terms) {
      made.operands.push_back(operands_.value(term.value, false));
    }
    made.operands.push_back(run_state());
  }

  void carry(int k) {
    const Carried& c = graph_.carried[static_cast<size_t>(k)];
    const ValueId parameter = graph_.parameters[static_cast<size_t>(c.parameter)].value;
    Operation& made = add(OpKind::kBuffer, Lane::kCompute);
    made.src = operands_.value(c.next, false);
    made.dst = operands_.kept(parameter);
    made.dst.count = graph_.value(parameter).desc.numel();
    made.dst.dtype = graph_.value(parameter).desc.dtype;
    made.operands = {made.src, made.dst.written()};
    made.rowless = std::ranges::any_of(graph_.nodes, [&](const Node& node) {
      return runs_without_rows(*node.op) && std::ranges::count(node.outputs, c.next) > 0;
    });
  }

  // A device begins the exchange as soon as this rank's rows are complete. Nodes before the first
  // reader overlap with it; the reader waits for an event.
  void post_rows(int n) {
    if (!context_.on_device) add_rows(OpKind::kAwait, n);
    Operation& made = add_rows(OpKind::kPlaceRows, n);
    made.run = runs_++;
    made.operands = {operands_.value(node(n).inputs[0], false), made.dst};
    add_rows(context_.on_device ? OpKind::kJoinRows : OpKind::kPost, n);
  }

  void join_rows(int n) {
    if (!context_.on_device) add_rows(OpKind::kJoinRows, n);
  }

  // If each rank fills only its part and the rest is 0, the sum over ranks is a gather. So the
  // transports that sum gradients carry rows too.
  Operation& add_rows(OpKind kind, int n) {
    const ValueId joined = node(n).outputs[0];
    Operation& made = add(kind, Lane::kCommunication);
    made.node = n;
    made.src = operands_.value(joined, false);
    made.dst = operands_.value(joined, true);
    made.group = all_ranks();
    made.channel = channels().rows(operands_.join(joined));
    made.part = {-1, made.dst.count / plan_.world};
    return made;
  }

  // --- --cpu-offload: copies that the steps below begin, and the update on the host ---

  const OffloadedUnit& offloaded(int u) const {
    return context_.memory.offload.units[static_cast<size_t>(u)];
  }

  PassedSlot take_slot(int u) {
    const OffloadMap& offload = context_.memory.offload;
    const bool waits = slots_taken_ >= offload.slots;
    const int index = slots_taken_++ % offload.slots;
    const size_t offset =
        context_.memory.offload_slots + static_cast<size_t>(index) * offload.slot_bytes;
    return {.sum = {.area = Area::kState,
                    .offset = static_cast<int64_t>(offset),
                    .count = places(u).span.numel},
            .index = index,
            .awaited = waits ? index : -1};
  }

  // Copies `part`, the rank's shard, from the host into `all`.
  void fetch_shard(int u, size_t from, const Operand& all, const Span& part) {
    if (part.numel == 0) return;
    Operation& made = add(OpKind::kCopyUp, Lane::kCommunication, u);
    made.dst = all.part(part.begin, part.numel);
    made.src = host_operand(from, part.numel, all.dtype);
  }

  void fetch_sum(int u, const PassedSlot& slot) {
    Operation& made = add(OpKind::kCopyUp, Lane::kCommunication, u);
    made.src = host_operand(offloaded(u).gradient, slot.sum.count, DType::kFloat32);
    made.dst = slot.sum;
    made.slot = slot.awaited;
  }

  Operation& send_gradient(int u, const Operand& gradient, Lane lane, int slot = -1) {
    Operation& made = add(OpKind::kCopyDown, lane, u);
    made.src = gradient;
    made.dst = host_operand(offloaded(u).gradient, gradient.count, offloaded(u).landed);
    made.slot = slot;
    return made;
  }

  // Tells the host that the unit's copies have arrived; -1: the decision has.
  void signal(int u, Lane lane) { add(OpKind::kSignal, lane, u); }

  // Returns LoweredProgram::host. The host waits for the decision if the norm is needed, else for
  // each gradient in turn.
  std::vector<Operation> update_on_host() const {
    std::vector<Operation> host;
    const auto add_host = [&](OpKind kind, int unit) -> Operation& {
      Operation& made = host.emplace_back();
      made.kind = kind;
      made.unit = unit;
      return made;
    };
    if (options_.clip) add_host(OpKind::kAwait, -1);
    for (const Step& step : program_.schedule.steps) {
      if (step.kind != StepKind::kReduceUpdate && step.kind != StepKind::kUpdate) continue;
      const int u = step.index;
      if (!options_.clip) add_host(OpKind::kAwait, u);
      Operation& made = add_host(OpKind::kHostUpdate, u);
      if (plan_.offload == CpuOffload::kParams) continue;
      made.src = host_operand(offloaded(u).rest, places(u).span.numel, plan_.rest_dtype);
      made.dst = places(u).owned.written();
    }
    if (options_.parameter_norms) add_host(OpKind::kTrust, -1);
    return host;
  }

  // --- a unit, gathered from the ranks that share it ---

  void gather(size_t step, int u) {
    const int64_t trained = unit(u).padded_numel, frozen = unit(u).frozen_padded_numel;
    if (const int64_t offset = program_.memory.step_offset[step]; offset >= 0) {
      operands_.gathered(u, arena_operand(offset, trained + frozen, plan_.param_dtype));
    }
    const Operand all = operands_.whole(u);
    const Operand all_trained = all.part(0, trained), all_frozen = all.part(trained, frozen);
    const Span shard = places(u).span;
    const Span frozen_shard = plan_.owned_frozen(unit(u), context_.rank);
    if (unit(u).plan.unshard == Unshard::kFetch) {
      fetch_shard(u, offloaded(u).rest, all_trained, shard);
      fetch_shard(u, offloaded(u).frozen, all_frozen, frozen_shard);
    }
    Operation& made = unshard(u, places(u).owned, all_trained, shard);
    made.stride = context_.memory.units[static_cast<size_t>(u)].owned_stride;
    made.parts = parts(u, shards(u), [&](int rank) { return part_of(places_of(u, rank)); });
    made.operands = {
        owned(u, false),
        all.part(0, trained + frozen).written(several_ranks() || !places(u).owned.begins_at(all))};
    if (frozen == 0) return;
    Operation& second = unshard(u, places(u).frozen, all_frozen, frozen_shard);
    second.frozen = true;
    second.parts = parts(u, shards(u), [&](int rank) {
      const Span span = plan_.owned_frozen(unit(u), rank);
      return RankPart{static_cast<size_t>(places_of(u, rank).frozen.offset), span.begin,
                      span.numel};
    });
  }

  // --shard-weights: returns `part` of each rank in the group; else nothing.
  template <typename Part>
  std::vector<RankPart> parts(int u, const RankGroup& group, const Part& part) const {
    std::vector<RankPart> list;
    const UnitPlan& plan = unit(u).plan;
    if (plan.bounds.empty() && plan.frozen_bounds.empty()) return list;
    for (int i = 0; i < group.count; ++i) list.push_back(part(group.rank(i)));
    return list;
  }

  UnitPlaces places_of(int u, int rank) const {
    const auto place = static_cast<size_t>(rank % unit(u).plan.shards);
    return unit_places(plan_, unit(u), rank,
                       context_.memory.of_places[place][static_cast<size_t>(u)]);
  }

  static RankPart part_of(const UnitPlaces& places) {
    return {static_cast<size_t>(places.owned.offset), places.span.begin, places.span.numel};
  }

  Operation& unshard(int u, const Operand& src, const Operand& dst, const Span& shard) {
    const bool fetches = unit(u).plan.unshard == Unshard::kFetch;
    Operation& made = add(OpKind::kUnshard, Lane::kCommunication, u);
    made.src = src;
    made.dst = dst;
    made.group = shards(u);
    made.part = shard;
    made.converts = !fetches && !src.begins_at(dst.part(shard.begin, 0));
    made.copied = fetches;
    return made;
  }

  // --- gradients: the buffer, the post, the sums over ranks ---

  // A unit that was awaited and has not posted since needs no second wait. Without this rule many
  // units in few slots would wait a quadratic number of times.
  void acquire(int u) {
    for (const int other : context_.slots.shares_bytes[static_cast<size_t>(u)]) {
      if (std::exchange(awaited_[static_cast<size_t>(other)], 1) != 0) continue;
      Operation& made = add(OpKind::kAwait, Lane::kCompute, u);
      made.channel = channels().gradient(other);
      made.group = sums(other);
    }
    Operation& made = add(OpKind::kClear, Lane::kCompute, u);
    made.dst = operands_.gradients(u);
    made.gaps = gaps(unit(u));
    const bool apart = operands_.apart(u).area != Area::kNone;
    made.operands = {(apart ? made.dst : places(u).slot).written()};
  }

  void accumulate(int u) {
    const bool first = options_.first_micro || unit(u).plan.shards_gradients;
    Operation& made = add(first ? OpKind::kConvert : OpKind::kAdd, Lane::kCompute, u);
    made.src = operands_.apart(u);
    made.dst = places(u).slot.written();
    made.operands = {made.src, made.dst};
  }

  void post(int u) {
    const bool scatters = unit(u).plan.shards > 1 || unit(u).plan.shards_gradients;
    Operation& made = add_post(u, channels().gradient(u), sums(u));
    scatters ? sums_buffer(made, u) : sums_copies(made, u);
  }

  void post_shard(int u) { sums_copies(add_post(u, channels().gradient_shard(u), copies(u)), u); }

  // If a sum over copies follows, the gradient is incomplete here; all_reduce takes the norm.
  void reduce(int u, bool updates) {
    const bool adds = !options_.first_micro && unit(u).plan.shards_gradients;
    const bool complete = options_.last_micro && !unit(u).plan.sums_copies;
    const bool passes = offloads() && offloaded(u).passes_slots;
    const bool keeps = offloads() ? offloaded(u).summed : !updates;
    const bool sends = passes || (offloads() && (updates || (complete && options_.clip)));
    // A unit that passes slots frees the slot by an event.
    const Lane lane = sends && !passes ? Lane::kDownload : Lane::kCommunication;
    const PassedSlot slot = passes ? take_slot(u) : PassedSlot{places(u).gradient};
    if (passes && adds) fetch_sum(u, slot);
    Operation& made = add(OpKind::kReduce, lane, u);
    sums_buffer(made, u);
    made.group = sums(u);
    made.channel = channels().gradient(u);
    made.unique = unique_of_owned(u);
    made.operands = touched(u, several_ranks(), updates);
    // A device sums slices one after the other in memory, so it needs dst even if nothing is
    // kept.
    if (keeps || (context_.on_device && plan_.across_ranks)) made.dst = slot.sum.written();
    if (adds) made.onto = slot.sum;
    made.copied = passes && adds;
    made.slot = adds ? -1 : slot.awaited;
    made.stages = stages(adds, complete, updates);
    const Span& span = places(u).span;
    if (sends) {
      send_gradient(u, keeps ? slot.sum : places(u).slot.part(span.begin, span.numel), lane,
                    slot.index);
    }
    if (offloads() && updates) signal(u, lane);
  }

  void all_reduce(int u) {
    const bool sends = offloads() && options_.clip;
    const Lane lane = sends ? Lane::kDownload : Lane::kCommunication;
    Operation& made = add(OpKind::kAllReduce, lane, u);
    sums_copies(made, u);
    made.dst = places(u).gradient.written();
    made.group = copies(u);
    made.channel = copies_channel(u);
    made.unique = unique_of_owned(u);
    made.operands = touched(u, true, false);
    made.stages = {.round_to = plan_.reduce_dtype, .norm = true};
    if (sends) send_gradient(u, places(u).gradient, lane);
  }

  Operation& add_post(int u, int channel, const RankGroup& group) {
    awaited_[static_cast<size_t>(u)] = 0;
    Operation& made = add(OpKind::kPost, Lane::kCompute, u);
    made.channel = channel;
    made.group = group;
    return made;
  }

  // Sets src and part to the span in the unit's buffer that this rank sums.
  void sums_buffer(Operation& made, int u) const {
    made.src = places(u).slot;
    made.part = places(u).span;
    made.parts = owned_parts(u, sums(u));
  }

  std::vector<RankPart> owned_parts(int u, const RankGroup& group) const {
    return parts(u, group, [&](int rank) {
      const Span span = plan_.owned(unit(u), rank);
      return RankPart{0, span.begin, span.numel};
    });
  }

  // Sets src and part for a sum over copies. `part` counts from src's beginning, in group
  // order.
  void sums_copies(Operation& made, int u) const {
    made.src = unit(u).plan.shards_gradients ? places(u).gradient : places(u).slot;
    made.part = {-1, unique(u).numel};
    const int64_t before = unit(u).plan.shards_gradients ? places(u).span.begin : 0;
    made.parts = parts(u, copies(u), [&](int rank) {
      const Span span = plan_.represented(unit(u), rank);
      return RankPart{0, span.begin - before, span.numel};
    });
  }

  Stages stages(bool adds, bool complete, bool updates) const {
    const bool ordered = plan_.across_ranks;
    return {.ordered = ordered,
            .round_to = !ordered || complete ? plan_.reduce_dtype : DType::kFloat32,
            .adds = adds && !ordered,
            .positive_zero = complete && ordered,
            .norm = complete,
            .exact = complete && ordered && options_.clip,
            .update = updates && !offloads()};
  }

  // --- the decision by the norm, the optimizer's steps, --watch ---

  void clip() {
    Operation& made = add(OpKind::kClip, Lane::kCommunication);
    made.stages.exact = plan_.across_ranks;
    made.operands = {run_state()};
    if (offloads()) signal(-1, Lane::kCommunication);
  }

  void update(int u) {
    if (offloads()) return send(u);
    if (!options_.matrices.empty()) await_copies(u);
    Operation& made = add(OpKind::kUpdate, Lane::kCommunication, u);
    made.src = places(u).gradient;
    made.part = places(u).span;
    made.operands = touched(u, several_ranks(), true);
  }

  void trust() {
    if (offloads()) return;  // the host takes the steps
    Operation& made = add(OpKind::kTrust, Lane::kCommunication);
    for (const Unit& unit : plan_.units) {
      made.operands.push_back(owned(unit.id, false));
      for (const Operand& values : places(unit.id).optimizer) made.operands.push_back(values);
    }
  }

  void apply(int u) {
    if (offloads()) return;
    Operation& made = add(OpKind::kApply, Lane::kCommunication, u);
    made.part = places(u).span;
    made.operands = {owned(u, true)};
    if (unit(u).plan.rounded) made.operands.push_back(places(u).rounded.written());
    for (const Operand& values : places(u).optimizer) made.operands.push_back(values);
  }

  void watch() {
    Operation& made = add(OpKind::kWatch, Lane::kCommunication);
    made.channel = channels().watch();
    made.group = all_ranks();
    made.src = {.area = Area::kShared,
                .offset = static_cast<int64_t>(context_.memory.watch_slot),
                .count = static_cast<int64_t>(context_.memory.watch_slot_bytes / sizeof(float))};
    made.dst = made.src.written();
    made.part = {-1, made.dst.count / plan_.world};
    made.operands = {made.dst};
  }

  // Waits until all ranks have read their parts in a sum over copies: an optimizer that keeps the
  // gradient writes there.
  void await_copies(int u) {
    if (unit(u).plan.copies == 1 || plan_.across_ranks) return;
    Operation& made = add(OpKind::kAwait, Lane::kCompute, u);
    made.channel = copies_channel(u);
    made.group = copies(u);
  }

  // If the norm is needed, the gradient was sent down before.
  void send(int u) {
    if (options_.clip) return;
    send_gradient(u, places(u).gradient, Lane::kDownload).operands =
        touched(u, several_ranks(), true);
    signal(u, Lane::kDownload);
  }

  // --- optimizers on whole matrices (Adafactor's factors, Muon), which gather and sum gradients
  // in a room that units share in turn ---

  // Under across_ranks sums follow the whole unit's order, so the unit is gathered
  // first.
  void factor(int u) {
    const MatrixRoom& rooms = context_.memory.matrix_rooms[static_cast<size_t>(u)];
    const Operand sums = room(rooms.gathered, rooms.sums);
    Operand gradient = places(u).gradient.part(unique_of_owned(u).begin, unique(u).numel);
    Span part = unique(u);
    await_room(u);
    if (plan_.across_ranks) {
      gradient = gather_gradient(u);
      part = {0, unit(u).padded_numel};
    }
    Operation& made = add(OpKind::kSums, Lane::kCommunication, u);
    made.src = gradient;
    made.part = part;
    made.dst = sums.written();
    made.operands = {made.src, made.dst};
    if (several_ranks() && !plan_.across_ranks) sum_over_ranks(u, sums);
    Operation& then = add(OpKind::kFactors, Lane::kCommunication, u);
    then.src = sums;
    then.operands = {sums};
    for (const Operand& values : places(u).optimizer) then.operands.push_back(values.written());
  }

  // Works in the room, from which all ranks take their elements. A single rank needs no copy.
  void orthogonalize(size_t step, int u) {
    const Operand gradient = places(u).gradient;
    const bool scatters = unit(u).plan.shards > 1;
    Operand whole = gradient;
    if (several_ranks()) {
      await_room(u);
      whole = gather_gradient(u);
      const Operand gathered = room(0, unit(u).padded_numel);
      if (!scatters) copy(u, std::exchange(whole, gathered), gathered);
    }
    const RankGroup group = scatters ? shards(u) : all_ranks();
    const size_t work_bytes = options_.matrices[static_cast<size_t>(u)].work_bytes;
    Operation& made = add(OpKind::kOrthogonalize, Lane::kCommunication, u);
    made.group = group;
    made.dst = whole.written();
    made.onto = arena_operand(program_.memory.step_offset[step], static_cast<int64_t>(work_bytes),
                              DType::kUInt8);
    made.operands = {made.dst, made.onto.written()};
    if (!several_ranks()) return;
    if (scatters) {
      Operation& sum =
          sum_room(u, whole, OpKind::kReduce, channels().matrix_shards(), group, places(u).span);
      sum.dst = gradient.written();
      sum.operands = {sum.src, sum.dst};
      return;
    }
    sum_over_ranks(u, whole);
    copy(u, whole, gradient);
  }

  // Returns elements [first, first + count) in the room.
  Operand room(int64_t first, int64_t count) const {
    const auto offset = static_cast<int64_t>(context_.memory.matrices);
    return Operand{.area = Area::kShared, .offset = offset}.part(first, count);
  }

  // Waits until no rank reads the room.
  void await_room(int u) {
    if (room_channel_ < 0) return;
    Operation& made = add(OpKind::kAwait, Lane::kCompute, u);
    made.channel = std::exchange(room_channel_, -1);
    made.group = room_group_;
  }

  // Gathers the unit's gradient into the room if the rank has only a shard. Returns the whole
  // gradient.
  Operand gather_gradient(int u) {
    const Operand& gradient = places(u).gradient;
    if (unit(u).plan.shards == 1) return gradient;
    if (!std::exchange(met_, true)) add(OpKind::kMeet, Lane::kCommunication, u);
    Operation& made = add(OpKind::kUnshard, Lane::kCommunication, u);
    const bool whole_slot = !unit(u).plan.shards_gradients;  // the slot contains the gradient
    made.src = gradient;
    made.dst = room(0, unit(u).padded_numel).written();
    made.group = shards(u);
    made.part = places(u).span;
    made.stride = whole_slot ? gradient.bytes() : 0;
    made.parts = parts(u, shards(u), [&](int rank) {
      const UnitPlaces places = places_of(u, rank);
      return RankPart{static_cast<size_t>(places.gradient.offset), places.span.begin,
                      places.span.numel};
    });
    made.converts = true;
    made.operands = {made.src, made.dst};
    return made.dst;
  }

  // Posts src, a span in the room, and adds the operation that sums it.
  Operation& sum_room(int u, const Operand& src, OpKind kind, int channel, const RankGroup& group,
                      const Span& part) {
    room_channel_ = channel;
    room_group_ = group;
    const auto add_to = [&](OpKind next, Lane lane) -> Operation& {
      Operation& made = add(next, lane, u);
      made.channel = channel;
      made.group = group;
      made.src = src;
      made.part = part;
      if (kind == OpKind::kReduce) made.parts = owned_parts(u, group);
      return made;
    };
    add_to(OpKind::kPost, Lane::kCompute);
    return add_to(kind, Lane::kCommunication);
  }

  // Sums src over all ranks, in place.
  void sum_over_ranks(int u, const Operand& src) {
    const Span part{-1, src.count / plan_.world};
    Operation& made =
        sum_room(u, src, OpKind::kAllReduce, channels().matrices(), all_ranks(), part);
    made.dst = src.written();
    made.operands = {made.dst};
  }

  void copy(int u, const Operand& src, const Operand& dst) {
    Operation& made = add(OpKind::kConvert, Lane::kCommunication, u);
    made.src = src;
    made.dst = dst.written();
    made.operands = {made.src, made.dst};
  }

  void none() {}

  const StepProgram& program_;
  const Graph& graph_;
  const CompileOptions& options_;
  const LoweringContext& context_;
  const Plan& plan_;
  ProgramOperands operands_;
  OperationList made_;
  int runs_ = 0;
  int slots_taken_ = 0;
  std::vector<char> awaited_;  // per unit: the latest post, in this program
  bool met_ = false;           // all ranks have met once, before the first gather into the room
  int room_channel_ = -1;      // ranks of room_group_ may still read the room; -1: none
  RankGroup room_group_;
};

}  // namespace

LoweredProgram lower(const StepProgram& program, const LoweringContext& context) {
  return Lowering(program, context).lower_all();
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
