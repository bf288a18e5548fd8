// RunState where a device computes: images of what is loaded and saved, the executor and what updates.
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "runtime/state/run_state.h"

namespace ofsdp::runtime {
namespace {

// States begin at 0, and gaps between parameters stay so.
void clear_pages(const DeviceMemory& memory) {
  constexpr int64_t kPagesWorthAThread = 256;
  const auto pages = static_cast<int64_t>(memory.bytes() / kPageBytes);
  parallel_for(pages, kPagesWorthAThread, [&](int64_t first, int64_t last) {
    std::memset(memory.data() + static_cast<size_t>(first) * kPageBytes, 0,
                static_cast<size_t>(last - first) * kPageBytes);
  });
}

}  // namespace

Status RunState::map_images(MemoryLedger& ledger) {
  constexpr auto kPrivate = Region::Sharing::kPrivate;
  OFSDP_ASSIGN_OR_RETURN(device_memory_,
                         DeviceRankMemory::allocate(*plan_.device, ledger, plan_.memory,
                                                    plan_.device_io, communicator_.size() > 1));
  OFSDP_ASSIGN_OR_RETURN(
      offloaded_,
      DeviceMemory::allocate(*plan_.device, offload_ledger_, plan_.memory.offload.bytes,
                             DeviceMemory::Place::kPinned, "what --cpu-offload keeps on the host"));
  clear_pages(offloaded_);
  OFSDP_ASSIGN_OR_RETURN(memory_.kept,
                         Region::map(image_ledger_, plan_.memory.kept, kPrivate, "constants"));
  OFSDP_ASSIGN_OR_RETURN(
      memory_.state, Region::map(image_ledger_, plan_.memory.state, kPrivate, "optimizer state"));
  OFSDP_ASSIGN_OR_RETURN(shared_image_, Region::map(image_ledger_, plan_.memory.shared, kPrivate,
                                                    "shards and gradients"));
  memory_.shared = shared_image_.data();
  OFSDP_ASSIGN_OR_RETURN(memory_.checkpoint, Region::map(ledger, plan_.memory.checkpoint, kPrivate,
                                                         "the checkpoint's copy"));
  OFSDP_ASSIGN_OR_RETURN(memory_.trace,
                         Region::map(ledger, plan_.memory.trace, kPrivate, "the trace"));
  return {};
}

Status RunState::make_device_executor(const ExecutorOptions& options) {
  Device& device = *plan_.device;
  OFSDP_RETURN_IF_ERROR(device_memory_.upload(memory_, shared_image_.bytes()));
  device_units_ =
      unit_states(plan_.plan, communicator_.rank(), plan_.memory, device_memory_.bases());
  const bool offloads = plan_.plan.offload != CpuOffload::kNone;
  OFSDP_RETURN_IF_ERROR(make_optimizer(offloads ? units_ : device_units_));
  OFSDP_ASSIGN_OR_RETURN(DeviceOptimizer optimizer, make_optimizer_of(device));
  const DeviceContext context{device,         plan_.plan,    plan_.memory, plan_.device_io,
                              device_memory_, device_units_, *optimizer_,  device_rules_.get()};
  OFSDP_ASSIGN_OR_RETURN(auto ranks, join_devices(options.timeout_seconds));
  OFSDP_ASSIGN_OR_RETURN(auto offload, make_offload());
  OFSDP_ASSIGN_OR_RETURN(auto executor, DeviceEngine::make(context, std::move(optimizer), options,
                                                           std::move(ranks), std::move(offload)));
  loss_weight_ = executor->loss_weight();
  bind_programs(device_memory_.bases());
  for (auto& [key, program] : programs_) OFSDP_RETURN_IF_ERROR(executor->prepare(program));
  executor_ = std::move(executor);
  return {};
}

// Null where another than the device updates, or its rules do.
Result<DeviceOptimizer> RunState::make_optimizer_of(Device& device) {
  if (plan_.plan.offload != CpuOffload::kNone) return DeviceOptimizer();
  if (plan_.device_rules) {
    std::byte* const scratch = device_memory_.io() + plan_.device_io.rules;
    OFSDP_ASSIGN_OR_RETURN(
        device_rules_, DeviceRules::make(device, *plan_.device_rules, *update_program_, scratch));
    return DeviceOptimizer();
  }
  DeviceOptimizer made = make_device_optimizer(device, plan_.optimizer->name, plan_.settings);
  if (made != nullptr) return made;
  return input_error("--optimizer {}: --device cuda does not have it; --device cpu does",
                     plan_.optimizer->name);
}

Result<std::unique_ptr<DeviceOffload>> RunState::make_offload() {
  const OffloadPlan& offload = plan_.memory.offload;
  if (offload.bytes == 0) return std::unique_ptr<DeviceOffload>();
  for (const Unit& unit : plan_.plan.units) optimizer_->round(unit.id);
  std::byte* const slots = device_memory_.bases().state + plan_.memory.offload_slots;
  OFSDP_ASSIGN_OR_RETURN(
      auto made, DeviceOffload::make({*plan_.device, plan_.plan, plan_.memory, offloaded_.data(),
                                      slots, units_, device_units_},
                                     HostUpdate(*optimizer_, units_, offload, offloaded_.data(),
                                                plan_.plan, communicator_)));
  OFSDP_RETURN_IF_ERROR(made->publish());
  return made;
}

Result<std::unique_ptr<DeviceRanks>> RunState::join_devices(double timeout_seconds) {
  auto* const mark = reinterpret_cast<int64_t*>(device_memory_.pinned() + plan_.device_io.mark);
  OFSDP_ASSIGN_OR_RETURN(auto ranks, DeviceRanks::join(*plan_.device, plan_.plan, communicator_,
                                                       mark, timeout_seconds));
  // Gathered units lie elsewhere in the program of a shorter batch.
  const MemoryBases bases = device_memory_.bases();
  OFSDP_RETURN_IF_ERROR(ranks->make_known(bases.arena, plan_.memory.arena, false));
  OFSDP_RETURN_IF_ERROR(ranks->make_known(bases.shared, plan_.memory.shared, true));
  return ranks;
}

Status RunState::fetch() {
  if (plan_.device == nullptr) return {};
  const bool offloaded = plan_.plan.offload != CpuOffload::kNone;  // the host has it
  return device_memory_.download(memory_, shared_image_.bytes(), offloaded);
}

}  // namespace ofsdp::runtime
