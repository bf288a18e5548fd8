#include "runtime/engine/device/device_offload.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/log/exposed_time.h"

namespace ofsdp::runtime {
namespace {

constexpr std::chrono::microseconds kMarkPause{20};

}  // namespace

std::vector<UnitState> offloaded_units(const OffloadPlan& offload, CpuOffload what,
                                       std::byte* pinned, std::vector<UnitState> units) {
  const auto floats = [&](size_t offset) { return reinterpret_cast<float*>(pinned + offset); };
  for (size_t u = 0; u < units.size(); ++u) {
    const OffloadedUnit& from = offload.units[u];
    units[u].owned = floats(from.owned);
    if (from.rest != from.owned) units[u].rounded = pinned + from.rest;
    units[u].optimizer.clear();
    for (const size_t offset : from.optimizer) units[u].optimizer.push_back(floats(offset));
    if (what == CpuOffload::kParams) units[u].frozen = pinned + from.frozen;
  }
  return units;
}

Result<std::unique_ptr<DeviceOffload>> DeviceOffload::make(const OffloadContext& context,
                                                           HostUpdate host) {
  std::unique_ptr<DeviceOffload> made(new DeviceOffload(context, host));
  OFSDP_RETURN_IF_ERROR(made->open());
  return made;
}

Status DeviceOffload::open() {
  const ofsdp_device_table& table = device_.table();
  for (ofsdp_stream** stream : {&up_, &download_}) {
    *stream = table.make_stream(device_.handle(), 0);
    if (*stream == nullptr) return fault("a stream: {}", table.error(device_.handle()));
  }
  arrived_.resize(context_.plan.units.size() + 1);
  free_.resize(static_cast<size_t>(context_.memory.offload.slots));
  std::vector<DeviceEvent*> events{&went_up_, &complete_, &sent_};
  for (DeviceEvent& event : arrived_) events.push_back(&event);
  for (DeviceEvent& event : free_) events.push_back(&event);
  for (DeviceEvent& event : joins_) events.push_back(&event);
  for (DeviceEvent* event : events) {
    OFSDP_ASSIGN_OR_RETURN(*event, DeviceEvent::make(device_));
  }
  return {};
}

DeviceOffload::~DeviceOffload() {
  for (ofsdp_stream* stream : {up_, download_}) {
    if (stream != nullptr) device_.table().drop_stream(device_.handle(), stream);
  }
}

Status DeviceOffload::copy(ofsdp_stream* stream, void* dst, const void* src, size_t bytes) {
  if (bytes == 0) return {};
  return device_.call("a copy of what is offloaded", device_.table().copy, stream, dst, src, bytes);
}

template <typename Copies>
Status DeviceOffload::traced(ofsdp_stream* stream, int unit, const Copies& copies) {
  if (trace_ == nullptr || !trace_->active()) return copies();
  OFSDP_ASSIGN_OR_RETURN(
      const size_t stretch,
      trace_->open(stream, stream == up_ ? TraceRow::kUp : TraceRow::kDown, unit));
  OFSDP_RETURN_IF_ERROR(copies());
  return trace_->close(stretch, stream);
}

Status DeviceOffload::order(const DeviceEvent& event, ofsdp_stream* first, ofsdp_stream* then) {
  OFSDP_RETURN_IF_ERROR(device_.call("an event", device_.table().record, event.get(), first));
  return device_.call("an event", device_.table().wait, then, event.get());
}

// Outside of a program, in the search for a NaN, the device is idle.
Status DeviceOffload::begin_up() {
  up_used_ = true;
  return fork_ == nullptr ? Status{} : device_.call("an event", device_.table().wait, up_, fork_);
}

Status DeviceOffload::fetch(int unit, std::byte* owned, std::byte* frozen) {
  const Unit& of_plan = context_.plan.units[static_cast<size_t>(unit)];
  const auto frozen_numel = static_cast<size_t>(of_plan.frozen_padded_numel / of_plan.plan.shards);
  OFSDP_RETURN_IF_ERROR(begin_up());
  OFSDP_RETURN_IF_ERROR(traced(up_, unit, [&] {
    OFSDP_RETURN_IF_ERROR(copy(up_, owned, rest(unit), rest_bytes(unit)));
    return copy(up_, frozen, context_.pinned + of(unit).frozen,
                frozen_numel * dtype_size(context_.plan.param_dtype));
  }));
  return order(went_up_, up_, device_.communication());
}

Result<float*> DeviceOffload::take_slot(int unit, bool with_sum) {
  const size_t slot = static_cast<size_t>(slots_taken_) % free_.size();
  const bool used = static_cast<size_t>(slots_taken_++) >= free_.size();
  std::byte* const data = context_.slots + slot * context_.memory.offload.slot_bytes;
  ofsdp_stream* const writer = with_sum ? up_ : device_.communication();
  if (with_sum) OFSDP_RETURN_IF_ERROR(begin_up());
  if (used) {
    OFSDP_RETURN_IF_ERROR(
        device_.call("an event", device_.table().wait, writer, free_[slot].get()));
  }
  if (with_sum) {
    const auto numel = context_.units[static_cast<size_t>(unit)].owned_numel;
    OFSDP_RETURN_IF_ERROR(traced(up_, unit, [&] {
      return copy(up_, data, context_.pinned + of(unit).gradient,
                  static_cast<size_t>(numel) * sizeof(float));
    }));
    OFSDP_RETURN_IF_ERROR(order(went_up_, up_, device_.communication()));
  }
  return reinterpret_cast<float*>(data);
}

Status DeviceOffload::give_slot_back() {
  const size_t slot = static_cast<size_t>(slots_taken_ - 1) % free_.size();
  return device_.call("an event", device_.table().record, free_[slot].get(), download_);
}

Status DeviceOffload::land(int unit, const void* gradient) {
  const auto numel = context_.units[static_cast<size_t>(unit)].owned_numel;
  download_used_ = true;
  OFSDP_RETURN_IF_ERROR(order(complete_, device_.communication(), download_));
  return traced(download_, unit, [&] {
    return copy(download_, context_.pinned + of(unit).gradient, gradient,
                static_cast<size_t>(numel) * dtype_size(of(unit).landed));
  });
}

// On the communication stream, which alone writes what is decided.
Status DeviceOffload::decide(const ofsdp_run_state* state) {
  if (decided_) return {};
  decided_ = download_used_ = true;
  OFSDP_RETURN_IF_ERROR(copy(device_.communication(),
                             context_.pinned + context_.memory.offload.decision, state,
                             sizeof(*state)));
  return order(complete_, device_.communication(), download_);
}

Status DeviceOffload::signal(int unit) {
  OFSDP_RETURN_IF_ERROR(
      device_.call("a mark", device_.table().mark, download_, arrival(unit), int64_t{1}));
  return device_.call("an event", device_.table().signal, arrived(unit).get(), download_);
}

// A stream that has joined a capture has to be joined to it again.
Status DeviceOffload::join() {
  const std::array<ofsdp_stream*, 3> streams{fork_ != nullptr ? device_.communication() : nullptr,
                                             up_used_ ? up_ : nullptr,
                                             download_used_ ? download_ : nullptr};
  for (size_t i = 0; i < streams.size(); ++i) {
    if (streams[i] != nullptr) {
      OFSDP_RETURN_IF_ERROR(order(joins_[i], streams[i], device_.compute()));
    }
  }
  fork_ = nullptr;
  up_used_ = download_used_ = decided_ = false;
  slots_taken_ = 0;
  return {};
}

Status DeviceOffload::publish() {
  for (const Unit& unit : context_.plan.units) OFSDP_RETURN_IF_ERROR(send_up(unit.id));
  return device_.call("what is offloaded", device_.table().synchronize);
}

// Nodes have read the old ones, since the gradient is complete.
Status DeviceOffload::send_up(int unit) {
  if (fetches()) return {};
  sending_ = true;
  return traced(up_, unit, [&] {
    return copy(up_, context_.device_units[static_cast<size_t>(unit)].owned, rest(unit),
                rest_bytes(unit));
  });
}

Status DeviceOffload::begin() {
  std::fill_n(arrival(-1), context_.plan.units.size() + 1, 0);
  if (!sending_) return {};
  sending_ = false;
  return order(sent_, up_, device_.compute());
}

Status DeviceOffload::await(int unit, const Wait& wait) const {
  for (;;) {
    OFSDP_RETURN_IF_ERROR(wait(arrived(unit).get()));
    if (std::atomic_ref(*arrival(unit)).load(std::memory_order_acquire) != 0) return {};
    std::this_thread::sleep_for(kMarkPause);
  }
}

Status DeviceOffload::update(const BoundProgram& program, const UpdateNumbers& numbers, bool scaled,
                             const Wait& wait) {
  const bool clip = program.plan->options.clip;
  if (clip) OFSDP_RETURN_IF_ERROR(await(-1, wait));
  for (const BoundStep& step : program.steps) {
    if (step.kind != StepKind::kReduceUpdate && step.kind != StepKind::kUpdate) continue;
    if (!clip) OFSDP_RETURN_IF_ERROR(await(step.index, wait));
    const ofsdp_run_state& decided = decision();
    if (decided.stop != 0 || decided.skip != 0) return {};
    UpdateNumbers mine = numbers;
    mine.optimizer_step = decided.optimizer_step;
    const int64_t began = nanoseconds_now();
    host_.run(step.index, mine, scaled ? &decided.gradient_factor : nullptr);
    if (trace_ != nullptr) trace_->add_host(step.index, began);
    if (!host_.takes_steps()) OFSDP_RETURN_IF_ERROR(send_up(step.index));
  }
  return host_.takes_steps() ? take_steps(numbers) : Status{};
}

// All units have been updated, so the decision is there.
Status DeviceOffload::take_steps(const UpdateNumbers& numbers) {
  UpdateNumbers mine = numbers;
  mine.optimizer_step = decision().optimizer_step;
  OFSDP_RETURN_IF_ERROR(host_.take_steps(mine));
  for (const Unit& unit : context_.plan.units) OFSDP_RETURN_IF_ERROR(send_up(unit.id));
  return {};
}

}  // namespace ofsdp::runtime
