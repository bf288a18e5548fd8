#include "runtime/engine/device/device_trace.h"

#include <cmath>

#include "runtime/log/exposed_time.h"

namespace ofsdp::runtime {
namespace {

Result<DeviceEvent> timed_event(Device& device) { return DeviceEvent::make(device, true); }

}  // namespace

Result<std::unique_ptr<DeviceTrace>> DeviceTrace::make(Device& device, TraceRecorder* recorder) {
  std::unique_ptr<DeviceTrace> made;
  if (recorder == nullptr) return made;
  made.reset(new DeviceTrace(device, *recorder));
  OFSDP_ASSIGN_OR_RETURN(made->before_, timed_event(device));
  return made;
}

// An operation begins a step, or is a copy, or neither; new parameters of a unit are one stretch
// more.
Status DeviceTrace::reserve(size_t operations, size_t units) {
  const size_t stretches = 2 * operations + units + 1;
  for (Slot& slot : slots_) {
    slot.stretches.reserve(stretches);
    while (slot.events.size() < 2 * (stretches + 1)) {
      OFSDP_ASSIGN_OR_RETURN(DeviceEvent event, timed_event(device_));
      slot.events.push_back(std::move(event));
    }
  }
  return {};
}

// [Note: the device's clock]
Status DeviceTrace::start() {
  const int64_t asked = nanoseconds_now();
  OFSDP_RETURN_IF_ERROR(device_.record(before_.get(), device_.upload()).with_prefix("the trace"));
  OFSDP_RETURN_IF_ERROR(device_.await(before_.get()).with_prefix("the trace"));
  before_time_ = asked + (nanoseconds_now() - asked) / 2;
  return {};
}

bool DeviceTrace::wants(const StepProgram& program, int64_t update) {
  if (!program.options.training) return evaluations_++ < kFirstTraced;
  if (first_update_ == 0) first_update_ = update;
  return update - first_update_ < kFirstTraced || update % kTracedEvery == 0;
}

Result<bool> DeviceTrace::begin(size_t slot, const StepProgram& program, int64_t update) {
  current_ = slot;
  Slot& now = slots_[slot];
  now.used = now.first = now.last = 0;
  now.stretches.clear();
  now.program = &program;
  now.update = update;
  now.ended = false;
  active_ = now.traced = wants(program, update);
  return active_;
}

Result<size_t> DeviceTrace::mark(ofsdp_stream* stream) {
  Slot& now = slots_[current_];
  OFSDP_CHECK(now.used < now.events.size(), "{} events of a trace", now.used);
  OFSDP_RETURN_IF_ERROR(
      device_.record(now.events[now.used].get(), stream).with_prefix("the trace"));
  return now.used++;
}

Result<size_t> DeviceTrace::open(ofsdp_stream* stream, TraceRow row, int32_t index) {
  Slot& now = slots_[current_];
  OFSDP_ASSIGN_OR_RETURN(const size_t begin, mark(stream));
  now.stretches.push_back({row, index, begin, begin, now.ended});
  return now.stretches.size() - 1;
}

Status DeviceTrace::close(size_t stretch, ofsdp_stream* stream) {
  OFSDP_ASSIGN_OR_RETURN(slots_[current_].stretches[stretch].end, mark(stream));
  return {};
}

void DeviceTrace::add_host(int unit, int64_t began) {
  if (!active_) return;
  recorder_.add(
      {nullptr, began, nanoseconds_now(), unit, TraceRow::kHost, slots_[current_].update});
}

Status DeviceTrace::begin_steps(ofsdp_stream* compute) {
  OFSDP_ASSIGN_OR_RETURN(slots_[current_].first, mark(compute));
  return {};
}

Status DeviceTrace::end(ofsdp_stream* compute) {
  OFSDP_ASSIGN_OR_RETURN(slots_[current_].last, mark(compute));
  slots_[current_].ended = true;
  return {};
}

Result<int64_t> DeviceTrace::between(const DeviceEvent& first, const DeviceEvent& then) const {
  double microseconds = 0;
  OFSDP_RETURN_IF_ERROR(
      device_.elapsed(first.get(), then.get(), &microseconds).with_prefix("the trace"));
  return std::llround(microseconds * 1e3);
}

Status DeviceTrace::collect(size_t slot) {
  Slot& done = slots_[slot];
  if (!done.traced) return {};
  done.traced = false;
  OFSDP_ASSIGN_OR_RETURN(const int64_t since, between(before_, done.events[0]));
  const int64_t base = before_time_ + since;
  for (const Stretch& stretch : done.stretches) {
    OFSDP_RETURN_IF_ERROR(add_stretch(done, stretch, base));
  }
  OFSDP_RETURN_IF_ERROR(add_update(done, base));
  std::swap(before_, done.events[0]);
  before_time_ = base;
  return {};
}

// A stretch after the micro-batch waits only for the copies before it.
Status DeviceTrace::add_stretch(const Slot& slot, const Stretch& stretch, int64_t base) {
  const DeviceEvent &begin = slot.events[stretch.begin], &end = slot.events[stretch.end];
  if (stretch.after) OFSDP_RETURN_IF_ERROR(device_.await(end.get()).with_prefix("the trace"));
  OFSDP_ASSIGN_OR_RETURN(const int64_t from, between(slot.events[0], begin));
  OFSDP_ASSIGN_OR_RETURN(const int64_t to, between(slot.events[0], end));
  const bool of_step = stretch.row == TraceRow::kCompute || stretch.row == TraceRow::kCommunication;
  recorder_.add({of_step ? slot.program : nullptr, base + from, base + to, stretch.index,
                 stretch.row, slot.update});
  return {};
}

// From the first micro-batch to the last.
Status DeviceTrace::add_update(const Slot& slot, int64_t base) {
  const CompileOptions& options = slot.program->options;
  if (!options.training) return {};
  if (options.first_micro) {
    OFSDP_ASSIGN_OR_RETURN(const int64_t from, between(slot.events[0], slot.events[slot.first]));
    update_began_ = base + from;
  }
  if (!options.last_micro) return {};
  OFSDP_ASSIGN_OR_RETURN(const int64_t to, between(slot.events[0], slot.events[slot.last]));
  recorder_.add({nullptr, update_began_, base + to, kTraceUpdate, TraceRow::kCompute, slot.update});
  return {};
}

}  // namespace ofsdp::runtime
