// DeviceTrace (--trace on a device) measures when each step of some updates ran, by events on the
// device's streams, and gives the times to the TraceRecorder (runtime/log/trace.h).
//
// It traces the first kFirstTraced updates and then every kTracedEvery-th, and as many first
// micro-batches of evaluations. Traced micro-batches are launched step by step, since an event in a
// graph has no time; all others launch their graphs. The choice depends only on the update's
// number, so that all ranks make the same.
//
// [Note: the device's clock] Before the first step, while the device is idle, an event is recorded
// and the host's clock is read next to it; the two differ by some tens of microseconds. All later
// times are sums of differences between events: between the first events of successive traced
// micro-batches, and within a micro-batch from the first event on.
//
// DeviceEngine owns the trace, which owns the events; device and recorder outlive it. One thread
// calls; only `reserve` allocates. Errors are the device's.
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
  // Returns null if `recorder` is null, that is without --trace.
  static Result<std::unique_ptr<DeviceTrace>> make(Device& device, TraceRecorder* recorder);

  // Makes enough events for micro-batches with this many operations and units.
  Status reserve(size_t operations, size_t units);
  // REQUIRES: the device is idle.
  Status start();

  // Begins a micro-batch, and returns true if it is traced. Then the calls until `finish` record
  // it.
  Result<bool> begin(size_t slot, const StepProgram& program, int64_t update);
  bool active() const { return active_; }
  // Begins the steps of the micro-batch.
  Status begin_steps(ofsdp_stream* compute);
  // The work that is put on the stream between `open` and `close` becomes one entry in the trace's
  // row `row`; `index` is the step of the program, or the unit in rows of copies. `open` returns
  // the number for `close`. Entries may nest.
  Result<size_t> open(ofsdp_stream* stream, TraceRow row, int32_t index);
  Status close(size_t stretch, ofsdp_stream* stream);
  // Records work of the host on a unit, from `began` until now.
  void add_host(int unit, int64_t began);
  // Called after all steps are on the streams. They are done when `compute` is done.
  Status end(ofsdp_stream* compute);
  void finish() { active_ = false; }

  // Gives the micro-batch's times to the recorder. REQUIRES: the device has finished it.
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
