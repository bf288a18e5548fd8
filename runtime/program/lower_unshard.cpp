// The parameters of a unit, from the shards of all ranks that share it.
#include "runtime/program/lower_steps.h"

namespace ofsdp::runtime {

void UnshardLowering::gather(size_t step, int u) {
  const int64_t trained = unit(u).padded_numel, frozen = unit(u).frozen_padded_numel;
  if (const int64_t offset = program_.memory.step_offset[step]; offset >= 0) {
    operands_.gathered(u, arena_operand(offset, trained + frozen, plan_.param_dtype));
  }
  const Operand all = operands_.whole(u);
  const Operand all_trained = all.part(0, trained), all_frozen = all.part(trained, frozen);
  const int64_t place = shards(u).index_of(context_.rank);
  const int64_t share = frozen / shards(u).count;
  const Span shard{place * places(u).span.numel, places(u).span.numel};
  const Span frozen_shard{place * share, share};
  if (unit(u).plan.unshard == Unshard::kFetch) {
    offload_.fetch_shard(u, offload_.of(u).rest, all_trained, shard);
    offload_.fetch_shard(u, offload_.of(u).frozen, all_frozen, frozen_shard);
  }
  Operation& made = unshard(u, places(u).owned, all_trained, shard);
  made.stride = context_.memory.units[static_cast<size_t>(u)].owned_stride;
  made.operands = {
      owned(u, false),
      all.part(0, trained + frozen).written(several_ranks() || !places(u).owned.begins_at(all))};
  if (frozen > 0) unshard(u, places(u).frozen, all_frozen, frozen_shard).frozen = true;
}

Operation& UnshardLowering::unshard(int u, const Operand& src, const Operand& dst,
                                    const Span& shard) {
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

}  // namespace ofsdp::runtime
