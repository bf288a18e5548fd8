// Gradients: the buffer that nodes write, its post, and the sums over ranks.
#include <utility>

#include "runtime/program/lower_steps.h"

namespace ofsdp::runtime {

// A unit that was awaited and has posted nothing since needs no second wait: with many units in
// few slots, waits would grow with the square of the units.
void GradientLowering::acquire(int u) {
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

void GradientLowering::accumulate(int u) {
  const bool first = options_.first_micro || unit(u).plan.shards_gradients;
  Operation& made = add(first ? OpKind::kConvert : OpKind::kAdd, Lane::kCompute, u);
  made.src = operands_.apart(u);
  made.dst = places(u).slot.written();
  made.operands = {made.src, made.dst};
}

void GradientLowering::post(int u) {
  const bool scatters = unit(u).plan.shards > 1 || unit(u).plan.shards_gradients;
  Operation& made = add_post(u, channels().gradient(u), sums(u));
  scatters ? sums_buffer(made, u) : sums_copies(made, u);
}

void GradientLowering::post_shard(int u) {
  sums_copies(add_post(u, channels().gradient_shard(u), copies(u)), u);
}

Operation& GradientLowering::add_post(int u, int channel, const RankGroup& group) {
  awaited_[static_cast<size_t>(u)] = 0;
  Operation& made = add(OpKind::kPost, Lane::kCompute, u);
  made.channel = channel;
  made.group = group;
  return made;
}

// Names the elements that this rank adds up of the unit's buffer.
void GradientLowering::sums_buffer(Operation& made, int u) const {
  made.src = places(u).slot;
  made.part = places(u).span;
}

// Names what is summed over the copies: `part` counts from the begin of `src`, in the order of the
// group.
void GradientLowering::sums_copies(Operation& made, int u) const {
  made.src = unit(u).plan.shards_gradients ? places(u).gradient : places(u).slot;
  made.part = {-1, unique(u).numel};
}

// A gradient that is summed over copies afterwards is no gradient yet: its norm is taken there.
void GradientLowering::reduce(int u, bool updates) {
  const bool adds = !options_.first_micro && unit(u).plan.shards_gradients;
  const bool complete = options_.last_micro && !unit(u).plan.sums_copies;
  const bool passes = offloads() && offload_.of(u).passes_slots;
  const bool keeps = offloads() ? offload_.of(u).summed : !updates;
  const bool sends = passes || (offloads() && (updates || (complete && options_.clip)));
  // One that passes slots frees its slot by an event of its own.
  const Lane lane = sends && !passes ? Lane::kDownload : Lane::kCommunication;
  const PassedSlot slot = passes ? offload_.take_slot(u) : PassedSlot{places(u).gradient};
  if (passes && adds) offload_.fetch_sum(u, slot);
  Operation& made = add(OpKind::kReduce, lane, u);
  sums_buffer(made, u);
  made.group = sums(u);
  made.channel = channels().gradient(u);
  made.unique = unique_of_owned(u);
  made.operands = touched(u, several_ranks(), updates);
  // A device sums slices one after the other, in memory; where there is none, in its own room.
  if (keeps || (context_.on_device && plan_.across_ranks)) made.dst = slot.sum.written();
  if (adds) made.onto = slot.sum;
  made.copied = passes && adds;
  made.slot = adds ? -1 : slot.awaited;
  made.stages = stages(adds, complete, updates);
  const Span& span = places(u).span;
  if (sends) {
    offload_.send_gradient(u, keeps ? slot.sum : places(u).slot.part(span.begin, span.numel), lane,
                           slot.index);
  }
  if (offloads() && updates) offload_.signal(u, lane);
}

Stages GradientLowering::stages(bool adds, bool complete, bool updates) const {
  const bool ordered = plan_.across_ranks;
  return {.ordered = ordered,
          .round_to = !ordered || complete ? plan_.reduce_dtype : DType::kFloat32,
          .adds = adds && !ordered,
          .positive_zero = complete && ordered,
          .norm = complete,
          .exact = complete && ordered && options_.clip,
          .update = updates && !offloads()};
}

void GradientLowering::all_reduce(int u) {
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
  if (sends) offload_.send_gradient(u, places(u).gradient, lane);
}

}  // namespace ofsdp::runtime
