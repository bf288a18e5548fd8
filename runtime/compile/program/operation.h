// Operation: one action of one rank: operands to read and write (area, offset, count, dtype), a
// group of ranks, a lane, and the stages after a sum. One or more operations make up a step of the
// schedule. lower (lower.h) makes operations and takes every decision; an Engine
// (engine/executor.h) carries them out. steps.inc has the kinds and their use of src, dst and onto.
//
// StreamSchedule (below): the streams and events with which a device runs them.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/plan/plan.h"

namespace ofsdp::runtime {

enum class Area : uint8_t {
  kNone,
  kArena,  // this and the next four are MemoryMap's regions (memory_map.h)
  kKept,
  kState,
  kShared,
  kCommon,
  kHost,        // pinned by --cpu-offload
  kInput,       // a column of the batch
  kLossWeight,  // one float per loss
  kRunState     // a device's ofsdp_run_state
};

struct Operand {
  Area area = Area::kNone;
  int64_t offset = 0;  // bytes; kInput: a column's index
  int64_t count = 0;   // elements, with the gaps between rows
  int64_t pitch = 0;   // TensorDesc::pitch
  DType dtype = DType::kFloat32;
  bool writes = false;
  std::byte* data = nullptr;  // set by bind; null for kInput, which each micro-batch sets

  size_t bytes() const { return static_cast<size_t>(count) * dtype_size(dtype); }
  float* floats() const { return reinterpret_cast<float*>(data); }
  bool begins_at(const Operand& other) const {
    return area == other.area && offset == other.offset;
  }

  Operand written(bool is = true) const {
    Operand made = *this;
    made.writes = is;
    return made;
  }
  // Returns elements [begin, begin + number).
  Operand part(int64_t begin, int64_t number) const {
    Operand made = *this;
    made.offset += begin * static_cast<int64_t>(dtype_size(dtype));
    made.count = number;
    return made;
  }
};

// A device's stream. A kDownload operation begins on the communication stream and ends on the
// download stream.
enum class Lane { kCompute, kCommunication, kDownload };

enum class OpKind : uint8_t {
#define OPERATION(kind, engine, cost, traffic, description) k##kind,
#define HOST_OPERATION(kind, description) k##kind,
#include "runtime/compile/program/steps.inc"
};

// Stages that each block of a sum passes, in this order.
struct Stages {
  bool ordered = false;              // add the ranks' parts to `onto` one by one, in rank order
  DType round_to = DType::kFloat32;  // round the sum; float32: do not round
  bool adds = false;                 // add `onto` to the sum; never with `ordered`
  bool positive_zero = false;        // replace -0 by 0
  bool norm = false;                 // add the squares of `unique` to the norm
  bool exact = false;                // sum these squares exactly too; Clip: take that sum
  bool update = false;               // give the block to the optimizer; else write it to dst
};

struct Operation {
  OpKind kind = OpKind::kRun;
  Lane lane = Lane::kCompute;
  bool begins_step = false, ends_step = false;
  int step = -1;  // index in Schedule::steps
  int unit = -1;
  int run = -1;   // Run, PlaceRows: index in BoundProgram::runs
  int node = -1;  // Run, PlaceRows: index in Graph::nodes
  Operand src{}, dst{}, onto{};
  std::vector<Operand> operands{};  // all reads and writes on the lane
  RankGroup group{};
  int channel = -1;
  Span part{};                    // elements
  size_t stride = 0;              // Unshard: from one rank's part to the next
  std::vector<RankPart> parts{};  // --shard-weights: of the ranks in the group; else none
  std::vector<std::pair<int64_t, int64_t>> gaps{};  // Clear: elements [first, second) of dst
  bool first = false, last = false;                 // the program's micro-batch in the update
  Stages stages{};
  Span unique{};          // elements that this rank counts for norms, from its shard's begin
  bool rowless = false;   // Run, Buffer: executed in an empty micro-batch too
  bool frozen = false;    // Unshard: the frozen parameters
  bool converts = false;  // Unshard: convert the own shard, src, into dst first; else it is there
  bool copied = false;    // wait for the copy up that precedes it
  int slot = -1;          // offload: a writer waits until the slot is free, CopyDown frees it
};

// Returns one line without a line break.
std::string text(const Operation& operation);

// StreamSchedule: assigns the steps of a program to the streams of a device and places events
// between them.
//
// A communication step waits for all earlier compute steps. A step of the download stream begins on
// the communication stream and ends on the download stream; later steps of the communication stream
// do not wait for its end. Copies up run on another stream, before the step that needs them and
// next to earlier steps of the communication stream.
//
// In all other cases a step waits for an earlier step of another stream only if both touch the same
// bytes and one of them writes. A gather thus overlaps with later nodes before its first reader,
// and an update with the backward nodes after it. Accesses to the same bytes keep the order of the
// schedule, so results do not depend on the streams.

struct MemoryAccess {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  bool writes = false;
};

struct StepAccess {
  Lane stream = Lane::kCompute;
  std::vector<MemoryAccess> touches;  // empty: nothing is put on a stream
  std::vector<MemoryAccess> copies;   // copied up before it
};

struct StreamStep {
  Lane stream = Lane::kCompute;
  int forks = -1;          // the compute stream records this event now; this step's waits for it
  std::vector<int> waits;  // events for which the stream waits before this step
  std::vector<int> copies_wait;  // events for which the copies up wait, besides the fork
  int records = -1;              // event recorded at step end
};

struct StreamSchedule {
  std::vector<StreamStep> steps;
  int events = 0;
  std::vector<int> joins;  // events for which the compute stream waits at the end
};

StreamSchedule schedule_streams(const std::vector<StepAccess>& steps);

// Returns the accesses of the schedule's `steps` steps. Addresses encode area and offset: they are
// compared, never dereferenced. Inputs have no address, because only uploads write them.
std::vector<StepAccess> step_accesses(std::span<const Operation> operations, size_t steps);

}  // namespace ofsdp::runtime
