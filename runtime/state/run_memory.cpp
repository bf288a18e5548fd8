#include "runtime/state/run_memory.h"

#include <cstring>

#include "kernels/cpu/parallel.h"

namespace ofsdp::runtime {
namespace {

// States start at 0, and gaps between parameters stay 0.
void clear_pages(const DeviceMemory& memory) {
  constexpr int64_t kPagesWorthAThread = 256;
  const auto pages = static_cast<int64_t>(memory.bytes() / kPageBytes);
  parallel_for(pages, kPagesWorthAThread, [&](int64_t first, int64_t last) {
    std::memset(memory.data() + static_cast<size_t>(first) * kPageBytes, 0,
                static_cast<size_t>(last - first) * kPageBytes);
  });
}

}  // namespace

Status RunMemory::map(const RunPlan& plan, Communicator& communicator, MemoryLedger& ledger) {
  if (plan.device != nullptr) {
    OFSDP_RETURN_IF_ERROR(map_images(plan, ledger, communicator.size() > 1));
  } else {
    OFSDP_ASSIGN_OR_RETURN(host, RankMemory::map(plan.memory, ledger, communicator));
  }
  units = unit_states(plan.plan, communicator.rank(), plan.memory, host.bases());
  if (plan.memory.offload.bytes > 0) {
    units =
        offloaded_units(plan.memory.offload, plan.plan.offload, pinned.data(), std::move(units));
  }
  return {};
}

Status RunMemory::map_images(const RunPlan& plan, MemoryLedger& ledger, bool several) {
  const RankMemoryPlan& bytes = plan.memory;
  OFSDP_ASSIGN_OR_RETURN(
      device, DeviceRankMemory::allocate(*plan.device, ledger, bytes, plan.device_io, several));
  OFSDP_ASSIGN_OR_RETURN(
      pinned,
      DeviceMemory::allocate(*plan.device, pinned_ledger, bytes.offload.bytes,
                             DeviceMemory::Place::kPinned, "what --cpu-offload keeps on the host"));
  clear_pages(pinned);
  const auto map = [](MemoryLedger& counted, size_t size, const char* name) {
    return Region::map(counted, size, Region::Sharing::kPrivate, name);
  };
  OFSDP_ASSIGN_OR_RETURN(host.kept, map(image_ledger, bytes.kept, "constants"));
  OFSDP_ASSIGN_OR_RETURN(host.state, map(image_ledger, bytes.state, "optimizer state"));
  OFSDP_ASSIGN_OR_RETURN(shared_image, map(image_ledger, bytes.shared, "shards and gradients"));
  host.shared = shared_image.data();
  OFSDP_ASSIGN_OR_RETURN(host.checkpoint, map(ledger, bytes.checkpoint, "the checkpoint's copy"));
  OFSDP_ASSIGN_OR_RETURN(host.trace, map(ledger, bytes.trace, "the trace"));
  OFSDP_ASSIGN_OR_RETURN(host.metrics, map(ledger, bytes.metrics, "metrics"));
  return {};
}

Status RunMemory::fetch(const RunPlan& plan) {
  if (plan.device == nullptr) return {};
  // --cpu-offload keeps it on the host
  const bool offloaded = plan.plan.offload != CpuOffload::kNone;
  return device.download(host, shared_image.bytes(), offloaded);
}

std::span<std::byte> RunMemory::staging() const {
  if (host.staging.bytes() > 0) return {host.staging.data(), host.staging.bytes()};
  return device.staging();
}

}  // namespace ofsdp::runtime
