// Optimizers of whole matrices (Adafactor's factors, Muon): gradients are gathered, and sums are
// taken, in a room that units use in turns.
#include <utility>

#include "runtime/program/lower_steps.h"

namespace ofsdp::runtime {

// Sums have an order of their own under across_ranks: that of the whole unit.
void MatrixLowering::factor(int u) {
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

// In the room, from where all get their elements of all matrices; a lone rank needs no copy.
void MatrixLowering::orthogonalize(size_t step, int u) {
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

// Elements of the room.
Operand MatrixLowering::room(int64_t first, int64_t count) const {
  const auto offset = static_cast<int64_t>(context_.memory.matrices);
  return Operand{.area = Area::kShared, .offset = offset}.part(first, count);
}

// Until nobody reads the room any more.
void MatrixLowering::await_room(int u) {
  if (room_channel_ < 0) return;
  Operation& made = add(OpKind::kAwait, Lane::kCompute, u);
  made.channel = std::exchange(room_channel_, -1);
  made.group = room_group_;
}

// Puts the unit's whole gradient into the room, where it is not whole already; returns where it is.
Operand MatrixLowering::gather_gradient(int u) {
  const Operand& gradient = places(u).gradient;
  if (unit(u).plan.shards == 1) return gradient;
  if (!std::exchange(met_, true)) add(OpKind::kMeet, Lane::kCommunication, u);
  Operation& made = add(OpKind::kUnshard, Lane::kCommunication, u);
  const bool whole_slot = !unit(u).plan.shards_gradients;  // the gradient is its place in the slot
  made.src = gradient;
  made.dst = room(0, unit(u).padded_numel).written();
  made.group = shards(u);
  made.part = places(u).span;
  made.stride = whole_slot ? gradient.bytes() : 0;
  made.converts = true;
  made.operands = {made.src, made.dst};
  return made.dst;
}

// Posts src, a part of the room, and begins its sum.
Operation& MatrixLowering::sum_room(int u, const Operand& src, OpKind kind, int channel,
                                    const RankGroup& group, const Span& part) {
  room_channel_ = channel;
  room_group_ = group;
  const auto add_to = [&](OpKind next, Lane lane) -> Operation& {
    Operation& made = add(next, lane, u);
    made.channel = channel;
    made.group = group;
    made.src = src;
    made.part = part;
    return made;
  };
  add_to(OpKind::kPost, Lane::kCompute);
  return add_to(kind, Lane::kCommunication);
}

// Adds up src over all ranks, in place.
void MatrixLowering::sum_over_ranks(int u, const Operand& src) {
  const Span part{-1, src.count / plan_.world};
  Operation& made = sum_room(u, src, OpKind::kAllReduce, channels().matrices(), all_ranks(), part);
  made.dst = src.written();
  made.operands = {made.dst};
}

void MatrixLowering::copy(int u, const Operand& src, const Operand& dst) {
  Operation& made = add(OpKind::kConvert, Lane::kCommunication, u);
  made.src = src;
  made.dst = dst.written();
  made.operands = {made.src, made.dst};
}

}  // namespace ofsdp::runtime
