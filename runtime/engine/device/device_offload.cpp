#include "runtime/engine/device/device_offload.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "fsdp/comm/communicator.h"
#include "kernels/core/device_values.h"
#include "kernels/cpu/parallel.h"
#include "runtime/log/exposed_time.h"

namespace ofsdp::runtime {

namespace {

constexpr std::chrono::microseconds kMarkPause{20};

}  // namespace

Status HostUpdate::take_steps(const UpdateNumbers& numbers) {
  updater_.begin(numbers);
  OFSDP_RETURN_IF_ERROR(updater_.agree_on_norms(communicator_, numbers.step));
  for (size_t u = 0; u < units_.size(); ++u) {
    OFSDP_RETURN_IF_ERROR(updater_.apply(static_cast<int>(u), {}));
  }
  return {};
}

Status HostUpdate::run(int unit, const UpdateNumbers& numbers, const float* factor) {
  constexpr int64_t kBlocksWorthAThread = 4;
  updater_.begin(numbers);
  const int64_t numel = units_[static_cast<size_t>(unit)].owned_numel;
  const int64_t blocks = (numel + kReduceBlock - 1) / kReduceBlock;
  std::atomic<bool> failed = false;
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = b * kReduceBlock;
      const Status status = run_block(unit, begin, std::min(kReduceBlock, numel - begin), factor);
      if (!status.ok()) failed = true;
    }
  };
  if (updater_.of_one_thread()) {
    run(0, blocks);
  } else {
    parallel_for(blocks, kBlocksWorthAThread, run);
  }
  return failed ? fault("the optimizer failed") : Status{};
}

Status HostUpdate::run_block(int unit, int64_t begin, int64_t count, const float* factor) const {
  const OffloadedUnit& from = offload_.units[static_cast<size_t>(unit)];
  alignas(kTensorAlignment) std::array<float, kReduceBlock> gradient;
  convert_elements(pinned_ + from.gradient + static_cast<size_t>(begin) * dtype_size(from.landed),
                   from.landed, reinterpret_cast<std::byte*>(gradient.data()), DType::kFloat32,
                   count);
  round_elements(gradient.data(), from.rounded_to, count);
  for (int64_t i = 0; factor != nullptr && i < count; ++i) {
    gradient[static_cast<size_t>(i)] *= *factor;
  }
  return updater_.advance(unit, begin, {gradient.data(), static_cast<size_t>(count)});
}

std::vector<UnitState> offloaded_units(const OffloadMap& offload, CpuOffload what,
                                       std::byte* pinned, std::vector<UnitState> units) {
  const auto floats = [&](size_t offset) { return reinterpret_cast<float*>(pinned + offset); };
  for (size_t u = 0; u < units.size(); ++u) {
    const OffloadedUnit& from = offload.units[u];
    units[u].owned = floats(from.owned);
    if (from.rest != from.owned) units[u].rounded = pinned + from.rest;
    units[u].optimizer.clear();
    for (const size_t offset : from.optimizer) {
      units[u].optimizer.push_back({StateForm::kFloat32, pinned + offset});
    }
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
  for (ofsdp_stream** stream : {&up_, &download_}) {
    auto made = device_.make_stream(false);
    if (!made.ok()) return std::move(made).status().with_prefix("a stream");
    *stream = *made;
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
    if (stream != nullptr) device_.drop_stream(stream);
  }
}

Status DeviceOffload::copy(ofsdp_stream* stream, void* dst, const void* src, size_t bytes) {
  if (bytes == 0) return {};
  return device_.copy(stream, dst, src, bytes).with_prefix("a copy of what is offloaded");
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
  OFSDP_RETURN_IF_ERROR(device_.record(event.get(), first).with_prefix("an event"));
  return device_.wait(then, event.get()).with_prefix("an event");
}

// In a search for a NaN, outside of a program, the device is idle and there is no fork.
Status DeviceOffload::begin_up() {
  up_used_ = true;
  return fork_ == nullptr ? Status{} : device_.wait(up_, fork_).with_prefix("an event");
}

Status DeviceOffload::wait_to_copy_up(ofsdp_event* event) {
  OFSDP_RETURN_IF_ERROR(begin_up());
  return device_.wait(up_, event).with_prefix("an event");
}

Status DeviceOffload::copy_up(const Operation& op) {
  OFSDP_RETURN_IF_ERROR(begin_up());
  if (op.slot >= 0) {
    OFSDP_RETURN_IF_ERROR(
        device_.wait(up_, free_[static_cast<size_t>(op.slot)].get()).with_prefix("an event"));
  }
  OFSDP_RETURN_IF_ERROR(
      traced(up_, op.unit, [&] { return copy(up_, op.dst.data, op.src.data, op.src.bytes()); }));
  return device_.record(went_up_.get(), up_).with_prefix("an event");
}

Status DeviceOffload::wait_for_copy() {
  return device_.wait(device_.communication(), went_up_.get()).with_prefix("an event");
}

Status DeviceOffload::wait_for_slot(int slot) {
  return device_.wait(device_.communication(), free_[static_cast<size_t>(slot)].get())
      .with_prefix("an event");
}

Status DeviceOffload::copy_down(const Operation& op) {
  download_used_ = true;
  OFSDP_RETURN_IF_ERROR(order(complete_, device_.communication(), download_));
  OFSDP_RETURN_IF_ERROR(traced(download_, op.unit, [&] {
    return copy(download_, op.dst.data, op.src.data, op.dst.bytes());
  }));
  if (op.slot < 0) return {};
  return device_.record(free_[static_cast<size_t>(op.slot)].get(), download_)
      .with_prefix("an event");
}

// Uses the communication stream, since only that stream writes the decision.
Status DeviceOffload::decide(const ofsdp_run_state* state) {
  if (decided_) return {};
  decided_ = download_used_ = true;
  OFSDP_RETURN_IF_ERROR(copy(device_.communication(),
                             context_.pinned + context_.memory.offload.decision, state,
                             sizeof(*state)));
  return order(complete_, device_.communication(), download_);
}

Status DeviceOffload::signal(int unit) {
  OFSDP_RETURN_IF_ERROR(device_.mark(download_, arrival(unit), 1).with_prefix("a mark"));
  return device_.signal(arrived(unit).get(), download_).with_prefix("an event");
}

// Every stream that joined a capture must join it again.
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
  return {};
}

Status DeviceOffload::publish() {
  for (const Unit& unit : context_.plan.units) OFSDP_RETURN_IF_ERROR(send_up(unit.id));
  return device_.synchronize().with_prefix("what is offloaded");
}

Status DeviceOffload::swap_average() {
  OFSDP_RETURN_IF_ERROR(host_.swap_average());
  return publish();
}

// The gradient is complete, so nodes have read the old parameters.
Status DeviceOffload::send_up(int unit) {
  if (context_.plan.offload == CpuOffload::kParams) return {};
  sending_ = true;
  const auto u = static_cast<size_t>(unit);
  const size_t bytes =
      static_cast<size_t>(context_.units[u].owned_numel) * dtype_size(context_.plan.rest_dtype);
  return traced(up_, unit, [&] {
    return copy(up_, context_.device_units[u].owned,
                context_.pinned + context_.memory.offload.units[u].rest, bytes);
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

// Returns the numbers of an update after the device's decision.
UpdateNumbers DeviceOffload::decided(const UpdateNumbers& numbers) const {
  UpdateNumbers made = numbers.after(decision().skipped_updates);
  made.optimizer_step = decision().optimizer_step;
  return made;
}

Status DeviceOffload::update(const std::vector<Operation>& operations, const UpdateNumbers& numbers,
                             bool scaled, const Wait& wait) {
  for (const Operation& op : operations) {
    if (op.kind == OpKind::kAwait) {
      OFSDP_RETURN_IF_ERROR(await(op.unit, wait));
      if (decision().stop != 0 || decision().skip != 0) return {};
      continue;
    }
    if (op.kind == OpKind::kTrust) return take_steps(numbers);
    const UpdateNumbers mine = decided(numbers);
    const int64_t began = nanoseconds_now();
    OFSDP_RETURN_IF_ERROR(host_.run(op.unit, mine, scaled ? &decision().gradient_factor : nullptr));
    if (trace_ != nullptr) trace_->add_host(op.unit, began);
    if (!host_.takes_steps()) OFSDP_RETURN_IF_ERROR(send_up(op.unit));
  }
  return {};
}

// All units were updated, so the decision has arrived.
Status DeviceOffload::take_steps(const UpdateNumbers& numbers) {
  OFSDP_RETURN_IF_ERROR(host_.take_steps(decided(numbers)));
  for (const Unit& unit : context_.plan.units) OFSDP_RETURN_IF_ERROR(send_up(unit.id));
  return {};
}

}  // namespace ofsdp::runtime
