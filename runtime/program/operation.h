// Operation: one action of a rank in a step of the schedule. It names the bytes it reads and writes
// (operands: area, offset, count, dtype), the ranks it works with, its lane and the stages after a
// sum. lower (lower.h) makes operations and takes every decision; an Engine (engine/executor.h)
// carries them out. The kinds are rows of steps.inc. Addresses point into the rank's memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fsdp/plan/plan.h"

namespace ofsdp::runtime {

enum class Area : uint8_t {
  kNone,
  kArena,  // the first five are regions of RankMemoryPlan
  kKept,
  kState,
  kShared,
  kCommon,
  kHost,        // pinned by --cpu-offload
  kInput,       // a column of the micro-batch
  kLossWeight,  // of a loss
  kRunState     // ofsdp_run_state of a device
};

struct Operand {
  Area area = Area::kNone;
  int64_t offset = 0;  // bytes; kInput: the index of the column
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

// The stream of a device. An operation of kDownload begins on the communication stream and ends on
// the download stream.
enum class Lane { kCompute, kCommunication, kDownload };

enum class OpKind : uint8_t {
#define OPERATION(kind, engine, cost, traffic, description) k##kind,
#define HOST_OPERATION(kind, description) k##kind,
#include "runtime/program/steps.inc"
};

// The stages of each block of a sum, in this order.
struct Stages {
  bool ordered = false;              // sum in the order of slices, starting from `onto`
  DType round_to = DType::kFloat32;  // round the sum; float32: do not round
  bool adds = false;                 // add `onto`
  bool positive_zero = false;        // replace -0 by 0
  bool norm = false;                 // add the squares to the norm
  bool exact = false;                // sum these squares exactly
  bool update = false;               // give the block to the optimizer; else write it to dst
};

struct Operation {
  OpKind kind = OpKind::kRun;
  Lane lane = Lane::kCompute;
  bool begins_step = false, ends_step = false;
  int step = -1;  // of the schedule
  int unit = -1;
  int run = -1;   // Run, PlaceRows: index in BoundProgram::runs
  int node = -1;  // Run, PlaceRows: index in Graph::nodes
  Operand src{}, dst{}, onto{};
  std::vector<Operand> operands{};  // all reads and writes on the lane
  RankGroup group{};
  int channel = -1;
  Span part{};                                      // elements
  size_t stride = 0;                                // Unshard: from one rank's part to the next
  std::vector<std::pair<int64_t, int64_t>> gaps{};  // Clear: elements [first, second) of dst
  bool first = false, last = false;                 // of an update's micro-batches
  Stages stages{};
  Span unique{};          // elements of `part` that count for norms on this rank
  bool rowless = false;   // Run, Buffer: executed in an empty micro-batch too
  bool frozen = false;    // Unshard: the frozen parameters
  bool converts = false;  // Unshard: copy src into dst first; else it is there already
  bool copied = false;    // wait for the copy up before it
  int slot = -1;          // slot of an offload: a writer waits until it is free, CopyDown frees it
};

// Returns one line without a line break.
std::string text(const Operation& operation);

}  // namespace ofsdp::runtime
