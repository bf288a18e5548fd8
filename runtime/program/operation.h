// Operation: one action of a rank in a step of the schedule. It names the bytes it reads and writes
// (operands: area, offset, count, dtype), the ranks it works with, its lane and the stages after a
// sum. lower (lower.h) makes operations and takes every decision; an Engine (engine/executor.h)
// carries them out.
//
//   Run        runs a node's kernel: operands are its inputs, outputs and workspace
//   Unshard    dst = the whole unit in the dtype of nodes, from src, this rank's shard; `part` is
//              the place of the shard in dst
//   Await      waits until the ranks of `group` have read what `channel` posted last
//   Clear      dst = 0 in the gaps between parameters, or everywhere in an empty micro-batch
//   Convert    dst = src in another dtype          Add        dst += src
//   Post       src is complete, for the ranks of `group` on `channel`
//   Reduce     sums the elements `part` of src over `group`, then runs `stages`
//   AllReduce  dst = its sum over `group`, then runs `stages`; each rank adds `part`
//   CheckLoss  the loss is known; NaN ends the run
//   Buffer     dst (a running statistic) = src
//   Clip       computes the global norm and the factor of the updates that follow
//   Update     the optimizer's update from src     Trust, Apply  its steps where they need norms
//   Sums       dst = sums of squares of the rows and columns of `part` of the unit, which is src;
//              other sums are 0
//   Factors    the optimizer's factors follow the sums src
//   Orthogonalize  makes this rank's matrices of the unit in dst orthogonal, with onto as
//              workspace; others become 0, the rest stays with the first rank of `group`
//   Meet       waits until all ranks are here
//   CopyUp     copies from host to device          CopyDown      copies from device to host
//   Signal     tells the host that the copies of `unit` have arrived; -1: the decision has
//   PlaceRows  runs the kernel that puts this rank's rows into its part of dst, which peers read
//   JoinRows   waits until dst has the rows of all ranks of `group`
//   Watch      writes this rank's part of the units' norms into dst and takes those of all ranks of
//              `group`; nothing in an update that is not watched
//   HostUpdate the update on the host, after the device's program
//
// Owner: the program owns its operations; addresses are views of the rank's memory. Thread: any.
// Errors: none.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fsdp/plan/plan.h"

namespace ofsdp::runtime {

// The regions of RankMemoryPlan; what --cpu-offload pins; a column of the micro-batch; the weight
// of the loss; the state of a run on a device.
enum class Area : uint8_t {
  kNone,
  kArena,
  kKept,
  kState,
  kShared,
  kCommon,
  kHost,
  kInput,
  kLossWeight,
  kRunState
};

struct Operand {
  Area area = Area::kNone;
  int64_t offset = 0;  // bytes; of kInput the column
  int64_t count = 0;   // elements
  int64_t pitch = 0;   // TensorDesc::pitch; `count` has what lies between the rows
  DType dtype = DType::kFloat32;
  bool writes = false;
  std::byte* data = nullptr;  // once bound; null for kInput, which each micro-batch sets

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
  // Elements [begin, begin + number).
  Operand part(int64_t begin, int64_t number) const {
    Operand made = *this;
    made.offset += begin * static_cast<int64_t>(dtype_size(dtype));
    made.count = number;
    return made;
  }
};

// The streams of a device where an operation begins and ends. One of kDownload begins on the
// communication stream.
enum class Lane { kCompute, kCommunication, kDownload };

enum class OpKind : uint8_t {
  kRun,
  kUnshard,
  kAwait,
  kClear,
  kConvert,
  kAdd,
  kPost,
  kReduce,
  kAllReduce,
  kCheckLoss,
  kBuffer,
  kClip,
  kUpdate,
  kTrust,
  kApply,
  kSums,
  kFactors,
  kOrthogonalize,
  kMeet,
  kCopyUp,
  kCopyDown,
  kSignal,
  kPlaceRows,
  kJoinRows,
  kWatch,
  kHostUpdate,
};

// The stages of a block of a sum, in this order.
struct Stages {
  bool ordered = false;              // the sum starts from `onto`, in the order of slices
  DType round_to = DType::kFloat32;  // float32: it is not rounded
  bool adds = false;                 // `onto` is added
  bool positive_zero = false;        // -0 becomes 0
  bool norm = false;                 // its squares count
  bool exact = false;                // and are summed exactly
  bool update = false;               // the optimizer takes it; else dst does
};

struct Operation {
  OpKind kind = OpKind::kRun;
  Lane lane = Lane::kCompute;
  bool begins_step = false, ends_step = false;
  int step = -1;  // of the schedule
  int unit = -1;
  int run = -1;   // Run, PlaceRows: position among these
  int node = -1;  // and in the graph
  Operand src{}, dst{}, onto{};
  std::vector<Operand> operands{};  // all that is read and written on the lane
  RankGroup group{};
  int channel = -1;
  Span part{};                                      // elements
  size_t stride = 0;                                // Unshard: from one rank's part to the next
  std::vector<std::pair<int64_t, int64_t>> gaps{};  // Clear: elements [first, second) of dst
  bool first = false, last = false;                 // of an update's micro-batches
  Stages stages{};
  Span unique{};          // of `part`, the elements that count on this rank alone: in norms
  bool rowless = false;   // Run, Buffer: also in a micro-batch without samples
  bool frozen = false;    // Unshard: of the frozen parameters
  bool converts = false;  // Unshard: src is not yet where dst has it
  bool copied = false;    // the copy up before it must have arrived
  int slot = -1;          // passes through: a writer waits until it is free, CopyDown frees it
};

// One line, without its end.
std::string text(const Operation& operation);

}  // namespace ofsdp::runtime
