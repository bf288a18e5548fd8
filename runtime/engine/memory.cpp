#include "runtime/engine/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "fsdp/comm/communicator.h"

namespace ofsdp::runtime {

Result<RankMemory> RankMemory::map(const MemoryMap& plan, MemoryLedger& ledger,
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
  OFSDP_ASSIGN_OR_RETURN(memory.trace, Region::map(ledger, plan.trace, kPrivate, "the trace"));
  OFSDP_ASSIGN_OR_RETURN(memory.metrics, Region::map(ledger, plan.metrics, kPrivate, "metrics"));
  OFSDP_ASSIGN_OR_RETURN(memory.watch, Region::map(ledger, plan.watch, kPrivate, "watched norms"));
  const auto sizes =
      plan.of_places.empty() ? Communicator::Sizes::kEqual : Communicator::Sizes::kOfEachRank;
  OFSDP_ASSIGN_OR_RETURN(memory.shared, communicator.allocate_shared(ledger, plan.shared, sizes));
  OFSDP_ASSIGN_OR_RETURN(memory.common,
                         communicator.allocate_common(ledger, plan.common_whole, plan.common));
  return memory;
}

std::byte* address(const MemoryBases& memory, const Operand& operand) {
  const auto offset = static_cast<size_t>(operand.offset);
  switch (operand.area) {
    case Area::kArena:
      return memory.arena + offset;
    case Area::kKept:
      return memory.kept + offset;
    case Area::kState:
      return memory.state + offset;
    case Area::kShared:
      return memory.shared + offset;
    case Area::kCommon:
      return memory.common + offset;
    default:
      return nullptr;
  }
}

std::vector<UnitState> unit_states(const Plan& plan, int rank, const MemoryMap& offsets,
                                   const MemoryBases& memory) {
  std::vector<UnitState> units;
  for (const Unit& unit : plan.units) {
    const UnitOffsets& own = offsets.units[static_cast<size_t>(unit.id)];
    const UnitPlaces places = unit_places(plan, unit, rank, own);
    const auto floats = [&](const Operand& o) {
      return reinterpret_cast<float*>(address(memory, o));
    };
    UnitState& made = units.emplace_back();
    made.owned = floats(places.owned);
    for (size_t i = 0; i < own.optimizer.size(); ++i) {
      const StateOffset& state = own.optimizer[i];
      made.optimizer.push_back(
          stored_state(state.form, address(memory, places.optimizer[i]), state.numel));
    }
    made.frozen = address(memory, places.frozen);
    made.rounded = address(memory, places.rounded);
    made.gradient = floats(places.gradient);
    made.slot = address(memory, places.slot);
    made.owned_numel = places.span.numel;
    made.owned_begin = places.span.begin;
  }
  return units;
}

Result<DeviceRankMemory> DeviceRankMemory::allocate(Device& device, MemoryLedger& ledger,
                                                    const MemoryMap& plan, const DeviceIoMap& io,
                                                    bool several) {
  using Place = DeviceMemory::Place;
  const Place reached = several ? Place::kShared : Place::kDevice;
  DeviceRankMemory memory;
  memory.device_ = &device;
  memory.bounce_ = io.bounce;
  const auto get = [&](DeviceMemory& region, size_t bytes, Place place, const char* name) {
    auto made = DeviceMemory::allocate(device, ledger, bytes, place, name);
    if (!made.ok()) return std::move(made).status();
    region = *std::move(made);
    return ok_status();
  };
  OFSDP_RETURN_IF_ERROR(get(memory.arena_, plan.arena, reached, "the arena"));
  OFSDP_RETURN_IF_ERROR(get(memory.kept_, plan.kept, Place::kDevice, "constants"));
  OFSDP_RETURN_IF_ERROR(get(memory.state_, plan.state, Place::kDevice, "optimizer state"));
  OFSDP_RETURN_IF_ERROR(get(memory.shared_, plan.shared, reached, "shards and gradients"));
  OFSDP_RETURN_IF_ERROR(get(memory.io_, io.device_bytes, Place::kDevice, "inputs and numbers"));
  OFSDP_RETURN_IF_ERROR(get(memory.staging_, plan.staging, Place::kPinned, "staging"));
  OFSDP_RETURN_IF_ERROR(get(memory.pinned_, io.pinned_bytes, Place::kPinned, "pinned numbers"));
  return memory;
}

std::array<DeviceRankMemory::Pair, 3> DeviceRankMemory::pairs(const RankMemory& images,
                                                              size_t shared_bytes) const {
  return {Pair{kept_.data(), images.kept.data(), images.kept.bytes()},
          Pair{state_.data(), images.state.data(), images.state.bytes()},
          Pair{shared_.data(), images.shared, shared_bytes}};
}

Status DeviceRankMemory::move(std::byte* dst, const std::byte* src, size_t bytes, bool up) {
  std::byte* const bounce = pinned_.data() + bounce_;
  for (size_t done = 0; done < bytes; done += kBounceBytes) {
    const size_t piece = std::min(kBounceBytes, bytes - done);
    if (up) std::memcpy(bounce, src + done, piece);
    const auto copy = [&](void* to, const void* from) {
      return device_->copy(device_->upload(), to, from, piece).with_prefix("a copy");
    };
    OFSDP_RETURN_IF_ERROR(up ? copy(dst + done, bounce) : copy(bounce, src + done));
    OFSDP_RETURN_IF_ERROR(device_->synchronize().with_prefix("a copy"));
    if (!up) std::memcpy(dst + done, bounce, piece);
  }
  return {};
}

Status DeviceRankMemory::upload(const RankMemory& images, size_t shared_bytes, bool kept_alone) {
  for (const Pair& pair : pairs(images, shared_bytes)) {
    OFSDP_RETURN_IF_ERROR(move(pair.device, pair.host, pair.bytes, true));
    if (pair.bytes > 0) madvise(pair.host, pair.bytes, MADV_DONTNEED);
    if (kept_alone) break;  // the first
  }
  return {};
}

Status DeviceRankMemory::download(const RankMemory& images, size_t shared_bytes, bool kept_alone) {
  OFSDP_RETURN_IF_ERROR(device_->synchronize().with_prefix("the device"));
  for (const Pair& pair : pairs(images, shared_bytes)) {
    OFSDP_RETURN_IF_ERROR(move(pair.host, pair.device, pair.bytes, false));
    if (kept_alone) break;  // the first
  }
  return {};
}

}  // namespace ofsdp::runtime
