#include "runtime/program/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "fsdp/comm/communicator.h"

namespace ofsdp::runtime {

namespace {

size_t take_wide(size_t& end, size_t bytes) {
  constexpr size_t kAlignment = 256;  // for the widest loads and copies of a GPU
  const size_t offset = end;
  end += align_up(bytes, kAlignment);
  return offset;
}

}  // namespace

DeviceNormsPlan plan_device_norms(const Plan& plan) {
  DeviceNormsPlan norms;
  for (const Unit& unit : plan.units) {
    norms.most_parts = std::max(norms.most_parts, static_cast<int64_t>(unit.params.size()));
    for (const UnitParam& p : unit.params) {
      norms.parameters = std::max<int64_t>(norms.parameters, p.parameter + 1);
    }
  }
  return norms;
}

DeviceIoPlan plan_device_io(size_t inputs, int64_t batch_size, int64_t most_owned,
                            const DeviceNormsPlan& norms) {
  const size_t numbers =
      sizeof(ofsdp_step_numbers) + static_cast<size_t>(batch_size) * sizeof(int64_t);
  DeviceIoPlan io;
  io.state = take_wide(io.device_bytes, sizeof(ofsdp_run_state));
  for (size_t& offset : io.numbers) offset = take_wide(io.device_bytes, numbers);
  for (size_t& offset : io.inputs) offset = take_wide(io.device_bytes, inputs);
  const int64_t blocks = most_owned / kReduceBlock;
  const int64_t partials =
      std::max(blocks + 2, norms.parameters > 0 ? 2 * (blocks + norms.most_parts) : 0);
  io.partials = take_wide(io.device_bytes, static_cast<size_t>(partials) * sizeof(double));
  io.squares =
      take_wide(io.device_bytes, 2 * static_cast<size_t>(norms.parameters) * sizeof(double));
  io.means = take_wide(io.device_bytes, static_cast<size_t>(norms.matrices) * sizeof(float));
  for (size_t& offset : io.pinned_numbers) offset = take_wide(io.pinned_bytes, numbers);
  for (size_t& offset : io.pinned_results) {
    offset = take_wide(io.pinned_bytes, sizeof(ofsdp_run_state));
  }
  io.mark = take_wide(io.pinned_bytes, sizeof(int64_t));
  io.bounce = take_wide(io.pinned_bytes, kBounceBytes);
  return io;
}

Result<DeviceRankMemory> DeviceRankMemory::allocate(Device& device, MemoryLedger& ledger,
                                                    const RankMemoryPlan& plan,
                                                    const DeviceIoPlan& io, bool several) {
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

Status DeviceRankMemory::upload(const RankMemory& images, size_t shared_bytes) {
  for (const Pair& pair : pairs(images, shared_bytes)) {
    OFSDP_RETURN_IF_ERROR(move(pair.device, pair.host, pair.bytes, true));
    if (pair.bytes > 0) madvise(pair.host, pair.bytes, MADV_DONTNEED);
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

SliceRoom slice_room(const Plan& plan, const Unit& unit, std::byte* slices) {
  const auto owned = static_cast<size_t>(plan.owned_numel(unit));
  const auto ranks = static_cast<size_t>(plan.world == 1 ? 0 : plan.world);
  const size_t parts = ranks * owned * dtype_size(unit.plan.gradient_dtype);
  std::byte* const sum = slices + align_up(parts, kTensorAlignment);
  std::byte* const rounded = sum + align_up(owned * sizeof(float), kTensorAlignment);
  return {slices, reinterpret_cast<float*>(sum), reinterpret_cast<float*>(rounded)};
}

void add_slices(DeviceIoPlan& io, const Plan& plan) {
  size_t most = 0;
  for (const Unit& unit : plan.units) {
    const SliceRoom room = slice_room(plan, unit, nullptr);
    const auto end = reinterpret_cast<uintptr_t>(room.rounded + plan.owned_numel(unit));
    most = std::max(most, static_cast<size_t>(end));
  }
  io.slices = align_up(io.device_bytes, kTensorAlignment);
  io.exact_sum = io.slices + align_up(most, kTensorAlignment);
  io.exact_limbs = io.exact_sum + align_up(sizeof(ofsdp_exact_sum), kTensorAlignment);
  io.device_bytes = io.exact_limbs + OFSDP_EXACT_LIMBS * sizeof(double);
}

}  // namespace ofsdp::runtime
