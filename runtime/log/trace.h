// --trace: when each executor step ran, as a Chrome trace (chrome://tracing,
// https://ui.perfetto.dev).
//
// While the run trains, the engine adds events to this rank's TraceRecorder: a ring buffer, in
// memory that the memory plan counts, with the last kTraceEvents events. PreparedRun opens the
// TraceFile before the run and calls write() once after it. The file then has one process per rank.
// On a CPU a rank has two rows: computing (nodes, updates) and communication (gathers, waits,
// reductions). On a device (runtime/engine/device/device_trace.h) each row is a stream, and rows
// for copies follow.
//
// Times in the file are microseconds since the first event on any rank. They are steady-clock
// times, so only ranks on the same host share a clock. All ranks must reach the file's folder.
//
// Format: "Trace Event Format", Google, 2016 (complete events, "ph": "X"). Programs must outlive
// recorder and file. Only the executor's thread may use them.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "fsdp/comm/communicator.h"
#include "runtime/compile/program/step_program.h"

namespace ofsdp::runtime {

// TraceEvent::step of events that belong to no program step.
inline constexpr int32_t kTraceExchange = -1;  // ranks exchange losses and norms after an update
inline constexpr int32_t kTraceUpdate = -2;    // the whole update

// The file's row for an event.
enum class TraceRow : int32_t {
  kOfStep,         // on a CPU: the writer takes kCompute or kCommunication, as the step's kind says
  kCompute,        // on a device: the compute stream
  kCommunication,  // on a device: the communication stream
  kInputs,         // copies a micro-batch from host to device
  kUp,             // --cpu-offload: copies from host to device
  kDown,           // --cpu-offload: copies from device to host
  kHost            // --cpu-offload: updates a unit on the host
};

struct TraceEvent {
  const StepProgram* program;  // null: no program step
  int64_t begin;               // steady clock, nanoseconds
  int64_t end;
  // Index in program->schedule. Without a program: kTraceExchange or kTraceUpdate; in kUp, kDown
  // and kHost the unit; in kInputs unused.
  int32_t step;
  TraceRow row;
  int64_t update;  // from 1
};

inline constexpr size_t kTraceEvents = size_t{1} << 18;
inline constexpr size_t kTraceBytes = kTraceEvents * sizeof(TraceEvent);

// A ring buffer: a new event overwrites the oldest if the memory is full. Never allocates.
class TraceRecorder {
 public:
  // Borrows `memory`. REQUIRES: it has room for at least one event.
  explicit TraceRecorder(std::span<std::byte> memory)
      : events_(reinterpret_cast<TraceEvent*>(memory.data()), memory.size() / sizeof(TraceEvent)) {}

  void add(const TraceEvent& event) {
    events_[static_cast<size_t>(count_++) % events_.size()] = event;
  }

  size_t size() const { return std::min(static_cast<size_t>(count_), events_.size()); }
  // Returns the i-th event that is still kept; 0 is the oldest.
  const TraceEvent& event(size_t i) const {
    const size_t oldest = static_cast<size_t>(count_) - size();
    return events_[(oldest + i) % events_.size()];
  }

 private:
  std::span<TraceEvent> events_;
  int64_t count_ = 0;
};

// Collects the events of all ranks into one file.
class TraceFile {
 public:
  // Creates the empty file PATH.rankR.part, so that a bad path ends the run before it trains.
  // Returns kInput if that fails. If `path` is empty, does nothing, and write() must not be called.
  // Not collective.
  static Result<TraceFile> open(const std::string& path, int rank);
  TraceFile() = default;
  TraceFile(TraceFile&& other) noexcept {
    std::swap(path_, other.path_), std::swap(part_, other.part_);
  }
  TraceFile& operator=(TraceFile&&) = delete;
  ~TraceFile();  // removes this rank's part

  // Writes this rank's part; rank 0 then joins all parts and renames the whole file to `path`, so
  // that nobody sees half a file. Collective: all ranks call it once, after the last update.
  // Returns kFault on the rank that cannot write; the others then fail in a barrier, as soon as the
  // caller reports the error (Communicator::fail).
  Status write(const TraceRecorder& recorder, const Plan& plan, Communicator& communicator);

 private:
  Status join_parts(int ranks) const;

  std::string path_;  // empty: none
  std::string part_;
};

// Returns one rank's events as JSON objects, one per line, separated by commas. Times count from
// `base`, in steady-clock nanoseconds.
std::string trace_lines(const TraceRecorder& recorder, const Plan& plan, int rank, int64_t base);

}  // namespace ofsdp::runtime
