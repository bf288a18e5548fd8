// --trace: what each step of the executor took, as a Chrome trace (chrome://tracing,
// https://ui.perfetto.dev).
//
// TraceRecorder keeps the last kTraceEvents events in memory that the plan counts; older ones are
// overwritten. TraceFile turns them into one file of all ranks at the end of the run: a process a
// rank, with two rows: nodes, updates and whatever else computes; gathers, waits and reductions. On
// a device (runtime/engine/device/device_trace.h) rows are streams, and those of copies come after
// these two. Times are microseconds since the first event of any rank (one host: one clock). The
// file appears by rename, whole or not at all; until then each rank writes a part of its own next
// to it.
//
// Format: "Trace Event Format", Google, 2016 (complete events, "ph": "X").
// Ownership: the recorder views the rank's memory; programs outlive both. Threads: the executor's.
// Recording never allocates. Errors: kInput when the file cannot be created, before the run; kFault
// when it cannot be written.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "fsdp/comm/communicator.h"
#include "runtime/program/program.h"

namespace ofsdp::runtime {

inline constexpr int32_t kTraceExchange = -1;  // the exchange that ends an update
inline constexpr int32_t kTraceUpdate = -2;    // the whole update

// The row of an event: where its kind of step belongs on a CPU, or on which stream it was.
enum class TraceRow : int32_t {
  kOfStep,
  kCompute,
  kCommunication,
  kInputs,
  kUp,  // of --cpu-offload, like the next two
  kDown,
  kHost
};

struct TraceEvent {
  const ProgramPlan* program;  // null: no step of one
  int64_t begin;               // nanoseconds of the steady clock
  int64_t end;
  int32_t step;  // of the program's schedule; kTrace...; on the last four rows the unit
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
  // In the order of recording.
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
  // Without a path nothing is written. Not collective.
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

// One rank's events, a line each, separated by commas; times count from `base`.
std::string trace_lines(const TraceRecorder& recorder, const Plan& plan, int rank, int64_t base);

}  // namespace ofsdp::runtime
