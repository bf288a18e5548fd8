// RankMemoryPlan: every byte that a rank will hold, before the first is allocated. RankMemory: the
// same, mapped. The regions:
//
//   arena       activations, gathered units, workspaces
//   kept        constants, frozen parameters
//   state       optimizer state, accumulated gradients, parameters that are not sharded
//   shared      parameter shards and gradient slots, which peers read
//   common      units with contiguous shards, which all ranks map ([Note: in place] in plan.h)
//   staging     micro-batches decoded ahead
//   checkpoint  the copy from which an asynchronous save writes
//   trace       events recorded for --trace
//   metrics     sums and scores of an evaluation
//   watch       the norms of the latest updates
//
// planned_bytes() is planned_peak_bytes in the metrics; the ledger counts the same from the
// mappings.
//
// RankMemory owns all regions except shared and common, which are the communicator's.
#pragma once

#include <optional>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "kernels/core/memory.h"
#include "kernels/core/stored_state.h"
#include "runtime/program/memory_plan.h"
#include "runtime/program/operation.h"
#include "runtime/program/schedule.h"

namespace ofsdp::runtime {

// --cpu-offload: offsets into pinned host memory, and slots on the device for accumulated gradients
// (Ren et al. 2021, "ZeRO-Offload"; PyTorch's CPUOffloadPolicy).
//
// The host holds for the rank's shard of each unit: masters and optimizer state in float32; a copy
// in Plan::param_dtype for the device, if that is another dtype; the gradient as the device sent
// it; and under `params` the frozen parameters. On the device:
//
//   optimizer   shards to gather from, accumulated gradients and frozen parameters stay on it
//   params      they do not. A gradient that is summed over micro-batches is copied up into a slot,
//               added to there, and copied down again
//
// In both, a gradient that is also summed over copies of the model (hybrid strategies) stays on the
// device, and a gradient that stays whole over micro-batches (no_shard, zero1) stays in its slot.
struct OffloadedUnit {
  size_t owned = 0;     // masters
  size_t rest = 0;      // copy for the device in Plan::param_dtype; equals `owned` for float32
  size_t frozen = 0;    // kParams
  size_t gradient = 0;  // in dtype `landed`
  std::vector<size_t> optimizer;
  // A sum over micro-batches is float32. Any other gradient has the slot's dtype, and the host
  // rounds it to the reduction dtype.
  DType landed = DType::kFloat32, rounded_to = DType::kFloat32;
  bool summed = false;        // the gradient is copied from the sum, not from the unit's slot
  bool passes_slots = false;  // the sum is on the host
};

struct OffloadPlan {
  size_t bytes = 0;            // pinned
  size_t parameter_bytes = 0;  // parts of `bytes`, for the table
  size_t optimizer_bytes = 0;
  size_t gradient_bytes = 0;
  size_t decision = 0;  // ofsdp_run_state of the update
  size_t arrivals = 0;  // int64 each: 1 if the decision has arrived, then the same of each unit
  std::vector<OffloadedUnit> units;

  size_t slot_bytes = 0;  // of a slot on the device
  int slots = 0;          // contiguous
};

// `accumulates`: an update has several micro-batches. `ahead`: number of units copied at once.
OffloadPlan plan_offload(const Plan& plan, int optimizer_states, bool accumulates, int ahead);

// A state tensor of a unit in the region `state`.
struct StateOffset {
  size_t offset = 0;
  int64_t numel = 0;
  StateForm form = StateForm::kFloat32;
};

struct UnitOffsets {
  size_t owned = 0;  // the rank's shard, in shared or in state; with an offload on a device it is
                     // in Plan::rest_dtype, or absent
  bool owned_in_shared = false;  // peers, or the rank itself, gather from it
  size_t owned_stride = 0;  // the rank's index in its shard group times this is added to `owned`
  int64_t whole = -1;       // the gathered copy if it is kept: in shared with the shard in place
                            // (float32), or in state; -1: none
  int64_t copies = -1;  // in common: the whole copies, one for each group of ranks that share it,
                        // with the shard in place (float32) and the frozen parameters after it;
                        // -1: none
  size_t frozen = 0;    // the rank's share of the frozen parameters, in shared
  std::vector<StateOffset> optimizer;
  int64_t gradient = -1;  // gradient shard if it is not in the slot; -1: none
  bool gradient_in_shared = false;
  size_t slot = 0;  // gradient slot, in shared
};

// A unit's use of the room that units share in turn: a gathered gradient, then sums over ranks.
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
  size_t metrics = 0;                    // sums and scores of an evaluation
  size_t watch = 0;                      // norms of the latest updates
  size_t link = 0;                       // buffers of the connections between hosts
  size_t checkpoint = 0;                 // staged copy of a checkpoint
  size_t data = 0;                       // unpacked columns of this rank
  size_t data_elsewhere = 0;             // unpacked columns of rank 0, on the other ranks
  size_t device_io = 0;                  // DeviceIoPlan::device_bytes
  size_t pinned_io = 0;                  // DeviceIoPlan::pinned_bytes
  OffloadPlan offload;                   // pinned on the host; not part of planned_bytes()
  size_t offload_slots = 0;              // OffloadPlan's slots on the device, in state
  size_t matrices = 0;                   // the room for matrices, in shared
  std::vector<MatrixRoom> matrix_rooms;  // per unit; may be empty
  std::vector<UnitOffsets> units;
  std::vector<size_t> joins;  // per ofsdp.JoinRows, in shared
  size_t watch_slot = 0;      // norms of all ranks, in shared
  size_t watch_slot_bytes = 0;

  size_t parameter_bytes = 0;  // parts of planned_bytes(), for the table
  size_t optimizer_bytes = 0;
  size_t gradient_bytes = 0;
  size_t join_bytes = 0;

  size_t planned_bytes() const;
  // Returns the bytes of the largest rank: rank 0 also holds the unpacked columns.
  size_t largest_bytes() const { return planned_bytes() + data_elsewhere; }
  // Returns the same on every rank. `limit`: --memory-limit.
  bool fits(const std::optional<int64_t>& limit) const {
    return !limit || largest_bytes() <= static_cast<size_t>(*limit);
  }
};

struct RankMemoryNeeds {
  std::vector<std::vector<int64_t>> states;  // per unit: elements of each state tensor
  std::vector<StateForm> forms;              // per state; missing ones are float32
  std::vector<MatrixRoom> matrices;          // per unit; may be empty
  bool accumulate = false;                   // gradients are kept over micro-batches
  bool keep = false;                         // until the last reduction, for a norm over all
  bool share = false;                        // in memory that peers read
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

// Returns the bytes of one copy of a unit in common memory, with the frozen parameters.
size_t copy_bytes(const Plan& plan, const Unit& unit);

RankMemoryPlan plan_rank_memory(const Plan& plan, const GradientSlots& slots,
                                const RankMemoryNeeds& needs);

// Addresses of the regions that kernels read, on the host or on a device.
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

  // Collective. Returns kFault if the system has no memory left.
  static Result<RankMemory> map(const RankMemoryPlan& plan, MemoryLedger& ledger,
                                Communicator& communicator);
};

// Returns the table of regions with their bytes.
std::string text(const RankMemoryPlan& plan);

// A rank's part of a unit, as operands of the rank's memory.
struct UnitPlaces {
  Span span;      // elements of the unit that the rank owns
  Operand owned;  // their parameters, in Plan::rest_dtype; none if they are on the host
  std::vector<Operand> optimizer;
  Operand frozen;    // the rank's share of the frozen parameters
  Operand whole;     // all parameters in Plan::param_dtype if no unshard is needed; or none
  Operand rounded;   // the owned part of `whole`, which an update rewrites; or none
  Operand gradient;  // the reduced gradient until the update; or none
  Operand slot;      // the whole gradient buffer
};

UnitPlaces unit_places(const Plan& plan, const Unit& unit, int rank, const UnitOffsets& offsets);

// The same as addresses.
struct UnitState {
  float* owned = nullptr;  // with an offload of the device, in Plan::rest_dtype
  std::vector<StoredState> optimizer;
  std::byte* frozen = nullptr;
  std::byte* rounded = nullptr;
  float* gradient = nullptr;
  std::byte* slot = nullptr;
  int64_t owned_numel = 0;
  int64_t owned_begin = 0;  // of the unit's flat elements
};

std::vector<UnitState> unit_states(const Plan& plan, int rank, const RankMemoryPlan& offsets,
                                   const MemoryBases& memory);

// Returns the address of an operand of MemoryBases, null for other areas.
std::byte* address(const MemoryBases& memory, const Operand& operand);

}  // namespace ofsdp::runtime
