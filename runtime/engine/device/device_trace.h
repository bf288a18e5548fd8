// DeviceTrace: --trace on a device: when each step of some updates ran, from events on its streams.
//
// It records the first kFirstTraced updates, every kTracedEvery-th after, and as many first
// micro-batches of evaluations. These are launched step by step, since an event in a graph carries
// no time; all others replay their graphs. The choice depends on the update's number alone, so all
// ranks agree.
//
// [Note: the device's clock] Before the first step the device is idle, and an event is recorded
// next to a reading of the host's clock; the two differ by some tens of microseconds. From there on
// times are sums of differences between events: from the first event of each traced micro-batch to
// that of the one before, and within a micro-batch to its first event.
//
// Owns the events; device and recorder outlive it. One thread; only `reserve` allocates.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "runtime/engine/memory.h"
#include "runtime/log/trace.h"

namespace ofsdp::runtime {

inline constexpr int64_t kFirstTraced = 4;
inline constexpr int64_t kTracedEvery = 100;

class DeviceTrace {
 public:
  // Null: nothing is recorded.
  static Result<std::unique_ptr<DeviceTrace>> make(Device& device, TraceRecorder* recorder);

  // Makes events for a micro-batch of so many operations.
  Status reserve(size_t operations, size_t units);
  // REQUIRES: the device is idle.
  Status start();

  // Begins a micro-batch. Returns true if it is traced; all until `finish` is recorded then.
  Result<bool> begin(size_t slot, const StepProgram& program, int64_t update);
  bool active() const { return active_; }
  // Begins the steps of the micro-batch.
  Status begin_steps(ofsdp_stream* compute);
  // Records work put on the stream between `open` and `close`, as a stretch of `row`; `index` is
  // the step of the program or, on rows of copies, the unit. Stretches may nest.
  Result<size_t> open(ofsdp_stream* stream, TraceRow row, int32_t index);
  Status close(size_t stretch, ofsdp_stream* stream);
  // Records finished work of the host for a unit.
  void add_host(int unit, int64_t began);
  // All steps are on the streams, and done when `compute` is.
  Status end(ofsdp_stream* compute);
  void finish() { active_ = false; }

  // REQUIRES: the micro-batch is done.
  Status collect(size_t slot);

 private:
  struct Stretch {
    TraceRow row;
    int32_t index;
    size_t begin, end;  // events
    bool after;         // `end`
  };
  struct Slot {
    std::vector<DeviceEvent> events;  // times count from the first
    size_t used = 0;
    std::vector<Stretch> stretches;
    size_t first = 0, last = 0;  // events before and after the steps
    const StepProgram* program = nullptr;
    int64_t update = 0;
    bool traced = false, ended = false;
  };

  DeviceTrace(Device& device, TraceRecorder& recorder) : device_(device), recorder_(recorder) {}
  bool wants(const StepProgram& program, int64_t update);
  Result<size_t> mark(ofsdp_stream* stream);
  Result<int64_t> between(const DeviceEvent& first, const DeviceEvent& then) const;
  Status add_stretch(const Slot& slot, const Stretch& stretch, int64_t base);
  Status add_update(const Slot& slot, int64_t base);

  Device& device_;
  TraceRecorder& recorder_;
  std::array<Slot, kMicroSlots> slots_;
  DeviceEvent before_;       // first event of the previous traced micro-batch
  int64_t before_time_ = 0;  // nanoseconds of the steady clock
  int64_t first_update_ = 0, evaluations_ = 0;
  int64_t update_began_ = 0;
  size_t current_ = 0;  // slot
  bool active_ = false;
};

}  // namespace ofsdp::runtime
