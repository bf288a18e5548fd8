#include "runtime/rank_memory.h"

namespace ofsdp {
namespace {

size_t take(size_t& end, size_t bytes) {
  const size_t offset = end;
  end += align_up(bytes, kTensorAlignment);
  return offset;
}

}  // namespace

size_t RankMemoryPlan::planned_bytes() const {
  return region_bytes(arena) + region_bytes(kept) + region_bytes(state) + region_bytes(shared) +
         region_bytes(staging) + region_bytes(checkpoint) + data;
}

RankMemoryPlan plan_rank_memory(const Plan& plan, const GradientSlots& slots,
                                const RankMemoryNeeds& needs) {
  RankMemoryPlan memory;
  memory.arena = needs.arena;
  memory.kept = needs.kept;
  memory.staging = needs.staging;
  memory.data = needs.data;
  memory.checkpoint = needs.checkpoint;
  memory.owned_in_shared = plan.gathers();
  for (const Unit& unit : plan.units) {
    UnitOffsets offsets;
    const size_t owned = static_cast<size_t>(plan.owned_numel(unit)) * sizeof(float);
    offsets.owned = take(memory.owned_in_shared ? memory.shared : memory.state, owned);
    memory.parameter_bytes += owned;
    for (int i = 0; i < needs.optimizer_states; ++i) {
      offsets.optimizer.push_back(take(memory.state, owned));
      memory.optimizer_bytes += owned;
    }
    if (needs.accumulate && plan.shards_gradients()) {
      offsets.gradient = static_cast<int64_t>(take(memory.state, owned));
      memory.gradient_bytes += owned;
    }
    memory.units.push_back(std::move(offsets));
  }
  const size_t first_slot = memory.shared;
  for (size_t u = 0; u < plan.units.size(); ++u)
    memory.units[u].slot = first_slot + slots.offset[u];
  memory.shared += slots.bytes;
  memory.gradient_bytes += slots.bytes;
  return memory;
}

Result<RankMemory> RankMemory::map(const RankMemoryPlan& plan, MemoryLedger& ledger,
                                   Communicator& communicator) {
  constexpr auto kPrivate = Region::Sharing::kPrivate;
  RankMemory memory;
  OFSDP_ASSIGN_OR_RETURN(memory.arena, Region::map(ledger, plan.arena, kPrivate, "the arena"));
  OFSDP_ASSIGN_OR_RETURN(memory.kept, Region::map(ledger, plan.kept, kPrivate, "constants"));
  OFSDP_ASSIGN_OR_RETURN(memory.state,
                         Region::map(ledger, plan.state, kPrivate, "optimizer state"));
  OFSDP_ASSIGN_OR_RETURN(memory.staging, Region::map(ledger, plan.staging, kPrivate, "staging"));
  OFSDP_ASSIGN_OR_RETURN(memory.checkpoint,
                         Region::map(ledger, plan.checkpoint, kPrivate, "the checkpoint's copy"));
  OFSDP_ASSIGN_OR_RETURN(memory.shared, communicator.allocate_shared(ledger, plan.shared));
  return memory;
}

std::string text(const RankMemoryPlan& plan) {
  std::string out;
  auto row = [&](const char* name, size_t bytes) {
    out += fmt::format("{:<34} {:>14}\n", name, bytes);
  };
  row("parameters (owned)", plan.parameter_bytes);
  row("optimizer state", plan.optimizer_bytes);
  row("gradients (slots, shards)", plan.gradient_bytes);
  row("arena (activations, gathered, work)", plan.arena);
  row("constants and frozen parameters", plan.kept);
  row("input (staging, unpacked columns)", plan.staging + plan.data);
  if (plan.checkpoint > 0) row("checkpoint (copy being written)", plan.checkpoint);
  row("peak, in whole pages", plan.planned_bytes());
  return out;
}

}  // namespace ofsdp
