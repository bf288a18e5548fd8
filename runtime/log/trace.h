// --trace: when each executor step ran, as a Chrome trace (chrome://tracing,
// https://ui.perfetto.dev).
//
// TraceRecorder keeps the last kTraceEvents events in memory that the plan counts and overwrites
// older ones. When the run ends, TraceFile writes one file for all ranks: a process a rank, with
// one row for computing (nodes, updates) and one for communication (gathers, waits, reductions). On
// a device (runtime/engine/device/device_trace.h) rows are streams, and rows for copies follow.
// Times are microseconds since the first event on any rank; one host has one clock. Until the file
// appears, whole, by rename, each rank writes a part next to it.
//
// Format: "Trace Event Format", Google, 2016 (complete events, "ph": "X"). The recorder borrows the
// memory of the rank; programs must outlive recorder and file. Must be used by the thread of the
// executor; recording never allocates. Errors: kInput if the file cannot be created, before the
// run; kFault if it cannot be written.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "fsdp/comm/communicator.h"
#include "runtime/compile/program/step_program.h"

namespace ofsdp::runtime {

inline constexpr int32_t kTraceExchange = -1;  // the exchange that ends an update
inline constexpr int32_t kTraceUpdate = -2;    // the whole update

// An event's row: the step kind on a CPU, the stream on a device.
enum class TraceRow : int32_t {
  kOfStep,
  kCompute,
  kCommunication,
  kInputs,
  kUp,  // for --cpu-offload, like the next two
  kDown,
  kHost
};

struct TraceEvent {
  const StepProgram* program;  // null: no program step
  int64_t begin;               // steady clock nanoseconds
  int64_t end;
  // index in the program's schedule, or kTrace...; in the last four rows the unit
  int32_t step;
  TraceRow row;
  int64_t update;  // from 1
};

inline constexpr size_t kTraceEvents = size_t{1} << 18;
inline constexpr size_t kTraceBytes = kTraceEvents * sizeof(TraceEvent);

class TraceRecorder {
 public:
  explicit TraceRecorder(std::span<std::byte> memory)
      : events_(reinterpret_cast<TraceEvent*>(memory.data()), memory.size() / sizeof(TraceEvent)) {}

  void add(const TraceEvent& event) {
    events_[static_cast<size_t>(count_++) % events_.size()] = event;
  }

  size_t size() const { return std::min(static_cast<size_t>(count_), events_.size()); }
  // Returns the i-th recorded event.
  const TraceEvent& event(size_t i) const {
    const size_t oldest = static_cast<size_t>(count_) - size();
    return events_[(oldest + i) % events_.size()];
  }

 private:
  std::span<TraceEvent> events_;
  int64_t count_ = 0;
};

class TraceFile {
 public:
  // With an empty path nothing is written. Not collective.
  static Result<TraceFile> open(const std::string& path, int rank);
  TraceFile() = default;
  TraceFile(TraceFile&& other) noexcept {
    std::swap(path_, other.path_), std::swap(part_, other.part_);
  }
  TraceFile& operator=(TraceFile&&) = delete;
  ~TraceFile();  // removes this rank's part

  // Collective.
  Status write(const TraceRecorder& recorder, const Plan& plan, Communicator& communicator);

 private:
  Status join_parts(int ranks) const;

  std::string path_;  // empty: none
  std::string part_;
};

// Returns one rank's events, a line each, separated by commas; times count from `base`.
std::string trace_lines(const TraceRecorder& recorder, const Plan& plan, int rank, int64_t base);

}  // namespace ofsdp::runtime
