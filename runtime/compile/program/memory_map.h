// MemoryMap: every byte that a rank will hold, before the first is allocated.
// runtime/engine/memory.h maps it. The regions:
//
//   arena       activations, gathered units, workspaces
//   kept        constants, frozen parameters
//   state       optimizer state, accumulated gradients, unsharded parameters
//   shared      parameter shards and gradient slots, which peers read
//   common      units with contiguous shards, which all ranks map ([Note: in place] in plan.h)
//   staging     micro-batches decoded ahead
//   checkpoint  the copy from which an asynchronous save writes
//   trace       events recorded for --trace
//   metrics     an evaluation's sums and scores
//   watch       norms that --watch keeps
//
// planned_bytes() is planned_peak_bytes in the metrics; the ledger counts the same from the
// mappings.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "kernels/core/memory.h"
#include "kernels/core/stored_state.h"
#include "runtime/compile/program/arena_map.h"
#include "runtime/compile/program/operation.h"
#include "runtime/compile/program/schedule.h"

namespace ofsdp::runtime {

// --cpu-offload: offsets into pinned host memory, and slots on the device for accumulated gradients
// (Ren et al. 2021, "ZeRO-Offload"; PyTorch's CPUOffloadPolicy).
//
// For the rank's shard of each unit the host holds: masters and optimizer state in float32; a copy
// in Plan::param_dtype for the device, if that is another dtype; the gradient as the device sent
// it; and under `params` the frozen parameters. On the device:
//
//   optimizer   shards to gather from, accumulated gradients and frozen parameters stay on it
//   params      they do not. A gradient that is summed over micro-batches is copied up into a slot,
//               added to there, and copied down again
//
// In both, a gradient that is also summed over copies of the model (hybrid strategies) stays on the
// device, and a gradient that stays whole over micro-batches (no_shard, zero1) stays in the slot.
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

struct OffloadMap {
  size_t bytes = 0;            // pinned
  size_t parameter_bytes = 0;  // parts of `bytes`, for the table
  size_t optimizer_bytes = 0;
  size_t gradient_bytes = 0;
  size_t decision = 0;  // ofsdp_run_state of the update
  size_t arrivals = 0;  // int64 each: 1 if the decision has arrived, then one a unit
  std::vector<OffloadedUnit> units;

  size_t slot_bytes = 0;  // per slot on the device
  int slots = 0;          // contiguous
};

// `accumulates`: an update has several micro-batches. `ahead`: number of units copied at once.
OffloadMap map_offload(const Plan& plan, int optimizer_states, bool accumulates, int ahead);

// A unit's state tensor, in the region `state`.
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

// A unit's use of the room that all units share in turn: a gathered gradient, then sums over ranks.
struct MatrixRoom {
  int64_t gathered = 0, sums = 0;  // floats
  int64_t numel() const { return gathered + sums; }
};

struct MemoryMap {
  size_t arena = 0;
  size_t kept = 0;
  size_t state = 0;
  size_t shared = 0;
  size_t common = 0;  // this rank's part
  size_t staging = 0;
  size_t trace = 0;
  size_t metrics = 0;                    // an evaluation's sums and scores
  size_t watch = 0;                      // norms that --watch keeps
  size_t link = 0;                       // buffers for messages between hosts
  size_t checkpoint = 0;                 // a checkpoint's staged copy
  size_t data = 0;                       // columns that this rank unpacks
  size_t data_elsewhere = 0;             // columns that rank 0 unpacks for this rank
  size_t device_io = 0;                  // DeviceIoMap::device_bytes
  size_t pinned_io = 0;                  // DeviceIoMap::pinned_bytes
  OffloadMap offload;                    // pinned on the host; not part of planned_bytes()
  size_t offload_slots = 0;              // OffloadMap's slots on the device, in state
  size_t matrices = 0;                   // the room for matrices, in shared
  std::vector<MatrixRoom> matrix_rooms;  // per unit; may be empty
  std::vector<UnitOffsets> units;
  std::vector<size_t> joins;  // per ofsdp.JoinRows, in shared
  size_t watch_slot = 0;      // all ranks' norms, in shared
  size_t watch_slot_bytes = 0;

  size_t parameter_bytes = 0;  // parts of planned_bytes(), for the table
  size_t optimizer_bytes = 0;
  size_t gradient_bytes = 0;
  size_t join_bytes = 0;

  size_t planned_bytes() const;
  // Returns the largest rank's bytes: rank 0 also holds the unpacked columns.
  size_t largest_bytes() const { return planned_bytes() + data_elsewhere; }
  // Returns the same on every rank. `limit`: --memory-limit.
  bool fits(const std::optional<int64_t>& limit) const {
    return !limit || largest_bytes() <= static_cast<size_t>(*limit);
  }
};

struct MemoryNeeds {
  std::vector<std::vector<int64_t>> states;  // per unit: each state tensor's elements
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
  size_t watch_slot = 0;  // all ranks' norms
  size_t device_io = 0;
  size_t pinned_io = 0;
  size_t link = 0;
};

// Returns the bytes of one unit in common memory, frozen parameters included.
size_t copy_bytes(const Plan& plan, const Unit& unit);

MemoryMap map_memory(const Plan& plan, const GradientSlots& slots, const MemoryNeeds& needs);

// Returns a table: regions and bytes.
std::string text(const MemoryMap& plan);

// A rank's part of a unit, as operands.
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

inline constexpr size_t kMicroSlots = 2;

// Offsets in bytes into the device's block and the pinned block.
struct DeviceIoMap {
  size_t state = 0;  // ofsdp_run_state
  std::array<size_t, kMicroSlots> numbers{};
  std::array<size_t, kMicroSlots> inputs{};
  size_t partials = 0;  // partial sums for the global norm, or for parameter norms
  size_t squares = 0;   // per parameter
  size_t means = 0;     // per matrix: the row factors' mean
  std::array<size_t, kMicroSlots> scalars{}, pinned_scalars{};  // for DeviceRules
  size_t rules = 0;                                             // scratch for DeviceRules
  size_t slices = 0;                                            // SliceRoom
  size_t exact_sum = 0, exact_limbs = 0;                        // the norm under across_ranks
  size_t device_bytes = 0;

  std::array<size_t, kMicroSlots> pinned_numbers{};
  std::array<size_t, kMicroSlots> pinned_results{};
  size_t mark = 0;    // the latest collective's number (runtime/engine/device/device_ranks.h)
  size_t bounce = 0;  // buffer to copy whole regions
  size_t pinned_bytes = 0;
};

inline constexpr size_t kBounceBytes = size_t{4} << 20;

// Sizes for an optimizer that needs norms or factors; all 0 for others.
struct DeviceNormNeeds {
  int64_t parameters = 0;  // two squares each
  int64_t most_parts = 0;  // per unit
  int64_t matrices = 0;    // with factored second moments
};
DeviceNormNeeds device_norm_needs(const Plan& plan);

// `inputs`: the largest micro-batch's bytes, each column aligned. `most_owned`: elements in the
// largest shard.
DeviceIoMap map_device_io(size_t inputs, int64_t batch_size, int64_t most_owned,
                          const DeviceNormNeeds& norms);

// Room to sum gradients in the order of slices ([Note: the same bits on any number of ranks] in
// fsdp/plan/plan.h). After each micro-batch the ranks exchange parts of their slots; each rank then
// adds the gradients of one shard one after the other. The norm is exact
// (kernels/optimizers/squares.h). A view of DeviceIoMap's block; one unit at a time uses
// it, on the communication stream.
struct SliceRoom {
  std::byte* parts = nullptr;  // all ranks', in order; unused if there is one rank
  float* sum = nullptr;        // used if the unit keeps no gradient
  float* rounded = nullptr;
};

SliceRoom slice_room(const Plan& plan, const Unit& unit, std::byte* slices);
// Adds room for the largest unit and for the norm.
void add_slices(DeviceIoMap& io, const Plan& plan);

}  // namespace ofsdp::runtime
