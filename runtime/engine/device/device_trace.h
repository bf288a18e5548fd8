// DeviceTrace: --trace on a device: when each step of some updates ran, by events of the streams
// that it ran on.
//
// It records the first kFirstTraced of a run and every kTracedEvery-th, and as many of the first
// micro-batches of evaluations. They are launched step by step, since an event in a graph says
// nothing of when; all others replay their graphs as without a trace. The choice follows from the
// number of the update, so all ranks make it alike.
//
// [Note: the device's clock] Before the first step the device is idle, and an event is put next to
// the host's clock: the two moments differ by what recording and hearing of it take, some tens of
// microseconds. From there on times are sums of differences between events: of the first one of
// each traced micro-batch to that of the one before, and within the micro-batch to its first.
//
// Ownership: owns the events; device and recorder outlive it. Threads: one. No allocation but in
// `reserve`. Errors: what the device says.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "runtime/log/trace.h"
#include "runtime/program/device_memory.h"

namespace ofsdp::runtime {

inline constexpr int64_t kFirstTraced = 4;
inline constexpr int64_t kTracedEvery = 100;

class DeviceTrace {
 public:
  // Null: nothing is recorded.
  static Result<std::unique_ptr<DeviceTrace>> make(Device& device, TraceRecorder* recorder);

  // While planning: for a micro-batch of so many operations.
  Status reserve(size_t operations, size_t units);
  // The device is idle.
  Status start();

  // A micro-batch. True: it is traced, and what follows is recorded until `finish`.
  Result<bool> begin(size_t slot, const ProgramPlan& program, int64_t update);
  bool active() const { return active_; }
  // Its steps follow.
  Status begin_steps(ofsdp_stream* compute);
  // Records what is put on the stream between `open` and `close`: its row, and the step of the
  // program or, on rows of copies, the unit. Other stretches may lie in between.
  Result<size_t> open(ofsdp_stream* stream, TraceRow row, int32_t index);
  Status close(size_t stretch, ofsdp_stream* stream);
  // Records work of the host for a unit, which is done.
  void add_host(int unit, int64_t began);
  // All steps are on the streams; it is done when this one is.
  Status end(ofsdp_stream* compute);
  void finish() { active_ = false; }

  // It is done.
  Status collect(size_t slot);

 private:
  struct Stretch {
    TraceRow row;
    int32_t index;
    size_t begin, end;  // events
    bool after;         // `end`
  };
  struct Slot {
    std::vector<DeviceEvent> events;  // the first is what its times count from
    size_t used = 0;
    std::vector<Stretch> stretches;
    size_t first = 0, last = 0;  // events before and after its steps
    const ProgramPlan* program = nullptr;
    int64_t update = 0;
    bool traced = false, ended = false;
  };

  DeviceTrace(Device& device, TraceRecorder& recorder) : device_(device), recorder_(recorder) {}
  bool wants(const ProgramPlan& program, int64_t update);
  Result<size_t> mark(ofsdp_stream* stream);
  Result<int64_t> between(const DeviceEvent& first, const DeviceEvent& then) const;
  Status add_stretch(const Slot& slot, const Stretch& stretch, int64_t base);
  Status add_update(const Slot& slot, int64_t base);

  Device& device_;
  TraceRecorder& recorder_;
  std::array<Slot, kMicroSlots> slots_;
  DeviceEvent before_;       // the first event of the traced micro-batch before
  int64_t before_time_ = 0;  // nanoseconds of the steady clock
  int64_t first_update_ = 0, evaluations_ = 0;
  int64_t update_began_ = 0;
  size_t current_ = 0;  // slot
  bool active_ = false;
};

}  // namespace ofsdp::runtime
