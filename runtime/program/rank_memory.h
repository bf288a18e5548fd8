// RankMemoryPlan: every byte a rank will hold, computed before the first is allocated; RankMemory:
// the same, mapped. Ten regions: arena (activations, gathered units, workspaces), kept
// (constants, frozen parameters), state (optimizer state, accumulated gradients, parameters that
// are whole), shared (parameter shards and gradient slots, which peers read), common (units whose
// shards lie side by side, which all ranks map: fsdp/plan/plan.h, in_place), staging (micro-batches
// decoded ahead), checkpoint (the copy that an asynchronous save writes from), trace (events
// recorded for --trace), metrics (sums and scores of an evaluation) and watch (the norms of the
// latest updates).
//
// `planned_bytes` is what the metrics call planned_peak_bytes; the ledger counts the same from the
// mappings.
//
// Ownership: RankMemory owns all but shared and common; the communicator owns these. Threads:
// one. Errors: kFault when the system has no memory left.
#pragma once

#include <optional>

#include "fsdp/comm/communicator.h"
#include "kernels/core/memory.h"
#include "kernels/core/stored_state.h"
#include "runtime/program/memory_plan.h"
#include "runtime/program/offload_plan.h"

namespace ofsdp::runtime {

// A state tensor of a unit, in state.
struct StateOffset {
  size_t offset = 0;
  int64_t numel = 0;
  StateForm form = StateForm::kFloat32;
};

struct UnitOffsets {
  size_t owned = 0;  // what the rank owns of the parameters: in shared or in state; of a
                     // device with an offload in Plan::rest_dtype, or not there at all
  bool owned_in_shared = false;  // where peers, or the rank itself, gather from
  size_t owned_stride = 0;       // times the rank's place in its shard group: added to `owned`
  int64_t whole = -1;            // the gathered copy, where it is kept: in shared, with the owned
                                 // part in place (float32), or in state; -1: none
  int64_t copies = -1;           // in common: where the whole copies begin, one for every group of
                                 // ranks that share one; with the owned part in place (float32)
                                 // and the frozen after it; -1: it is not there
  size_t frozen = 0;             // the rank's share of the frozen ones, in shared
  std::vector<StateOffset> optimizer;
  int64_t gradient = -1;  // gradient shard, where the slot does not hold it; -1: none
  bool gradient_in_shared = false;
  size_t slot = 0;  // gradient slot, in shared
};

// A unit's part of the room where matrices are gathered and summed, which units use in turns: first
// a gathered gradient, then sums over ranks.
struct MatrixRoom {
  int64_t gathered = 0, sums = 0;  // floats
  int64_t numel() const { return gathered + sums; }
};

struct RankMemoryPlan {
  size_t arena = 0;
  size_t kept = 0;
  size_t state = 0;
  size_t shared = 0;
  size_t common = 0;  // this rank's part
  size_t staging = 0;
  size_t trace = 0;
  size_t metrics = 0;         // sums and scores of an evaluation
  size_t watch = 0;           // norms of the latest updates
  size_t link = 0;            // pieces on their way between hosts
  size_t checkpoint = 0;      // one staged copy of what a checkpoint holds
  size_t data = 0;            // columns unpacked into memory, of the rank that owns them
  size_t data_elsewhere = 0;  // those that another rank owns
  size_t device_io = 0;  // of a device: inputs, numbers, results (runtime/program/device_memory.h)
  size_t pinned_io = 0;  // its other end on the host
  OffloadPlan offload;   // pinned on the host, and in no sum of this table
  size_t offload_slots = 0;              // offload's slots on the device, in state
  size_t matrices = 0;                   // the room for matrices, in shared
  std::vector<MatrixRoom> matrix_rooms;  // per unit; empty: of none
  std::vector<UnitOffsets> units;
  std::vector<size_t> joins;  // of a program's joined rows, in shared
  size_t watch_slot = 0;      // norms of all ranks, in shared
  size_t watch_slot_bytes = 0;

  size_t parameter_bytes = 0;  // shares of the sum, for the table
  size_t optimizer_bytes = 0;
  size_t gradient_bytes = 0;
  size_t join_bytes = 0;

  size_t planned_bytes() const;
  // The bytes of the rank that holds most: this one, and the columns that rank 0 unpacks for all.
  size_t largest_bytes() const { return planned_bytes() + data_elsewhere; }
  // --memory-limit, or none; the same answer on every rank.
  bool fits(const std::optional<int64_t>& limit) const {
    return !limit || largest_bytes() <= static_cast<size_t>(*limit);
  }
};

struct RankMemoryNeeds {
  std::vector<std::vector<int64_t>> states;  // per unit: elements of each state tensor
  std::vector<StateForm> forms;              // of each state; shorter: the rest in float32
  std::vector<MatrixRoom> matrices;          // per unit; empty: of none
  bool accumulate = false;                   // gradients are kept over micro-batches
  bool keep = false;                         // and until something over all of them is known
  bool share = false;                        // where peers can read them
  int prefetch_depth = 1;
  JoinSlots joins;
  size_t arena = 0;
  size_t kept = 0;
  size_t staging = 0;
  size_t data = 0;
  size_t data_elsewhere = 0;
  size_t checkpoint = 0;
  size_t trace = 0;
  size_t metrics = 0;
  size_t watch = 0;       // the history
  size_t watch_slot = 0;  // the numbers of all ranks
  size_t device_io = 0;
  size_t pinned_io = 0;
  size_t link = 0;
};

// The bytes of one copy of a unit in common memory, the frozen parameters included.
size_t copy_bytes(const Plan& plan, const Unit& unit);

RankMemoryPlan plan_rank_memory(const Plan& plan, const GradientSlots& slots,
                                const RankMemoryNeeds& needs);

// The addresses where the regions that kernels see begin: on the host, or on a device.
struct MemoryBases {
  std::byte* arena = nullptr;
  std::byte* kept = nullptr;
  std::byte* state = nullptr;
  std::byte* shared = nullptr;
  std::byte* common = nullptr;
};

struct RankMemory {
  MemoryBases bases() const { return {arena.data(), kept.data(), state.data(), shared, common}; }

  Region arena, kept, state, staging, checkpoint, trace, metrics, watch;
  std::byte* shared = nullptr;
  std::byte* common = nullptr;

  static Result<RankMemory> map(const RankMemoryPlan& plan, MemoryLedger& ledger,
                                Communicator& communicator);
};

// The table of what is held for what.
std::string text(const RankMemoryPlan& plan);

}  // namespace ofsdp::runtime
