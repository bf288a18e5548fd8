// MemoryMap: one rank's memory plan, made before anything is allocated: the size of each region,
// and each unit's offsets in them. A unit is a group of parameters that are gathered, reduced and
// updated together. The compiler makes the plan; runtime/engine/memory.h allocates the regions. On
// a GPU arena, kept, state, shared and device_io are device memory, the other regions host memory.
//
//   arena       activations, gathered units, workspaces
//   kept        constants, frozen parameters that nobody shards
//   state       optimizer state, accumulated gradients, unsharded parameters
//   shared      parameter shards and gradient slots, which peers read
//   common      units whose shards lie side by side in memory that all ranks on a host map, so that
//               no gather is needed ([Note: in place] in fsdp/plan/plan.h)
//   staging     micro-batches that the loader reads ahead
//   data        data columns that this rank decompresses, for all ranks on the host
//   link        buffers for messages between hosts
//   checkpoint  the copy from which an asynchronous save writes
//   trace       events recorded for --trace
//   metrics     an evaluation's sums and scores
//   watch       norms that --watch keeps
//   device_io   on a GPU: inputs, step numbers and scratch (DeviceIoMap)
//   pinned_io   the host's end of device_io, pinned (DeviceIoMap)
//
// planned_bytes() is the sum of all regions: planned_peak_bytes in the
// metrics. The run's ledger counts the same from its allocations. The pinned memory of
// --cpu-offload (OffloadMap::bytes) comes on top. Nothing here fails.
#pragma once

#include <algorithm>
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

// --cpu-offload: the host updates the parameters, in pinned memory (Ren et al. 2021,
// "ZeRO-Offload"; PyTorch's CPUOffloadPolicy). "Up" means from host to device, "down" from device
// to host.
//
// For the rank's shard of each unit, the host holds masters (the float32 parameters that the
// optimizer changes) and optimizer state, both float32; if Plan::param_dtype is another dtype, a
// copy in that dtype for the device; and the gradient, as it came down. The option decides about
// the rest:
//
//   --cpu-offload optimizer   the device keeps the shards that are gathered, the gradients summed
//                             over micro-batches, and the frozen parameters
//   --cpu-offload params      the host holds these, too. For each micro-batch the gradient's sum is
//                             copied up into a slot on the device, the new gradient is added to it,
//                             and the sum is copied down again
//
// Exceptions for both: a gradient that is also summed over copies of the model (hybrid strategies)
// stays on the device, and a gradient that is not sharded until the update (no_shard, zero1) stays
// in its slot in `shared`.

// Offsets of one unit in pinned memory, in bytes.
struct OffloadedUnit {
  size_t owned = 0;     // masters
  size_t rest = 0;      // the copy that goes up, in Plan::rest_dtype; equals `owned` for float32
  size_t frozen = 0;    // this rank's share of the frozen parameters; only under `params`
  size_t gradient = 0;  // in dtype `landed`
  std::vector<size_t> optimizer;  // per state
  // The gradient comes down in dtype `landed`: float32 if it is a sum over micro-batches or copies,
  // else the dtype of the unit's slot. Before the update the host rounds it to `rounded_to`.
  DType landed = DType::kFloat32, rounded_to = DType::kFloat32;
  bool summed = false;        // such a sum comes down, not the content of the unit's slot
  bool passes_slots = false;  // the host holds the sum, which passes through OffloadMap's slots
};

struct OffloadMap {
  size_t bytes = 0;            // of pinned memory
  size_t parameter_bytes = 0;  // parts of `bytes`, for the table
  size_t optimizer_bytes = 0;
  size_t gradient_bytes = 0;
  size_t decision = 0;  // offset of an ofsdp_run_state, which says whether and how to update
  // Offset of int64 flags, which the device sets to 1: the decision has arrived, then one flag per
  // unit: its gradient has arrived.
  size_t arrivals = 0;
  std::vector<OffloadedUnit> units;

  // Slots on the device for gradients that pass through it, one after the other in `state`.
  size_t slot_bytes = 0;  // per slot
  int slots = 0;
};

// `optimizer_states`: per parameter. `accumulates`: an update has several micro-batches. `ahead`:
// how many units are copied up at a time.
OffloadMap map_offload(const Plan& plan, int optimizer_states, bool accumulates, int ahead);

// One optimizer state of a unit, in the region `state`.
struct StateOffset {
  size_t offset = 0;  // bytes
  int64_t numel = 0;
  StateForm form = StateForm::kFloat32;
};

// One unit's offsets, in bytes. unit_places() turns them into operands with region and dtype; only
// it and map_memory need to know which region each offset belongs to.
struct UnitOffsets {
  // The rank's shard of the parameters. In `shared` if owned_in_shared, else in `state`. Unused (0)
  // under --cpu-offload params, and if float32 shards lie in `copies`.
  size_t owned = 0;
  bool owned_in_shared = false;  // a gather reads it
  // If not 0, the shard lies inside `whole`, which begins at `owned`. Bytes from one shard to the
  // next, if they are equal.
  size_t owned_stride = 0;
  // The whole unit, if the rank keeps it gathered; -1: it does not. In `shared` if owned_stride is
  // not 0, else in `state`.
  int64_t whole = -1;
  // If the unit is in `common`: the first of its whole copies, one per group of ranks that share
  // one, copy_bytes() each, with the frozen parameters at the end; -1: it is not there.
  int64_t copies = -1;
  size_t frozen = 0;  // the rank's share of the frozen parameters, in `shared`
  std::vector<StateOffset> optimizer;
  // The reduced gradient of the rank's shard, if it is kept outside the slot; -1: it is not. In
  // `shared` if gradient_in_shared, else in `state`.
  int64_t gradient = -1;
  bool gradient_in_shared = false;
  size_t slot = 0;  // the unit's gradient slot, in `shared`; units may use the same bytes in turn
};

// A unit's part in the matrix room: memory in `shared` for optimizers that work on whole
// matrices (Adafactor's factors, Muon), which units use one after the other. It holds the unit's
// gradient, gathered from all ranks, and after it sums over ranks.
struct MatrixRoom {
  int64_t gathered = 0, sums = 0;  // float32 elements
  int64_t numel() const { return gathered + sums; }
};

struct MemoryMap {
  size_t arena = 0;
  size_t kept = 0;
  size_t state = 0;
  size_t shared = 0;
  size_t common = 0;        // this rank's part of the region
  size_t common_whole = 0;  // of all ranks on the host
  size_t staging = 0;
  size_t trace = 0;
  size_t metrics = 0;
  size_t watch = 0;
  size_t link = 0;
  size_t checkpoint = 0;
  size_t data = 0;
  size_t data_elsewhere = 0;  // `data` of the first rank on the host; 0 if this rank is the first
  size_t device_io = 0;
  size_t pinned_io = 0;
  OffloadMap offload;                    // not part of planned_bytes()
  size_t offload_slots = 0;              // offset of OffloadMap's slots in `state`
  size_t matrices = 0;                   // offset of the matrix room in `shared`
  std::vector<MatrixRoom> matrix_rooms;  // per unit; empty: no optimizer needs one
  std::vector<UnitOffsets> units;
  // --shard-weights: `units` of each rank in the shard group, and largest_bytes() of each if it
  // were the first on its host; else empty.
  std::vector<std::vector<UnitOffsets>> of_places;
  std::vector<size_t> bytes_of_places;
  std::vector<size_t> joins;  // per ofsdp.JoinRows node: offset of all ranks' rows in `shared`
  size_t watch_slot = 0;      // --watch: offset of all ranks' norms in `shared`
  size_t watch_slot_bytes = 0;

  size_t parameter_bytes = 0;  // parts of planned_bytes(), for the table
  size_t optimizer_bytes = 0;
  size_t gradient_bytes = 0;
  size_t join_bytes = 0;

  size_t planned_bytes() const;
  // Returns the bytes of the rank that needs most, the first on a host: it also holds the
  // decompressed data columns. All ranks return the same.
  size_t largest_bytes() const {
    return bytes_of_places.empty() ? planned_bytes() + data_elsewhere
                                   : std::ranges::max(bytes_of_places);
  }
  // Returns whether every rank needs at most `limit` bytes (--memory-limit; none: any number). All
  // ranks return the same.
  bool fits(const std::optional<int64_t>& limit) const {
    return !limit || largest_bytes() <= static_cast<size_t>(*limit);
  }
};

// The input of map_memory, in bytes unless noted. Members named like a region are its size.
struct MemoryNeeds {
  std::vector<std::vector<int64_t>> states;  // per unit: each state tensor's elements
  std::vector<StateForm> forms;              // per state; missing ones are float32
  std::vector<MatrixRoom> matrices;          // per unit; may be empty
  bool accumulate = false;                   // gradients are summed over micro-batches
  bool keep = false;   // reduced gradients are kept until the last unit's, for the norm over all
                       // units or for whole matrices
  bool share = false;  // kept gradients lie in `shared`, since other ranks gather them
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
  size_t watch = 0;
  size_t watch_slot = 0;  // --watch: all ranks' norms of one update
  size_t device_io = 0;
  size_t pinned_io = 0;
  size_t link = 0;
};

// Returns the bytes of one whole copy of the unit in `common`, frozen parameters included.
size_t copy_bytes(const Plan& plan, const Unit& unit);

// `slots`: gradient slots, relative to the first. Without weights all ranks have the same map.
MemoryMap map_memory(const Plan& plan, int rank, const GradientSlots& slots,
                     const MemoryNeeds& needs);

// Returns the table that `fsdp-run plan` prints: what the memory is for, and bytes.
std::string text(const MemoryMap& memory);

// A rank's part of a unit, as operands (region, offset, elements and dtype). "None"
// is an empty operand.
struct UnitPlaces {
  Span span;      // elements of the unit that the rank owns
  Operand owned;  // their parameters, in Plan::rest_dtype; none if they are on the host
  std::vector<Operand> optimizer;
  Operand frozen;  // the rank's share of the frozen parameters
  Operand whole;  // the whole unit in Plan::param_dtype, if nodes read it without a gather; or none
  Operand rounded;   // the part of `whole` that the update writes in Plan::param_dtype; or none
  Operand gradient;  // the reduced gradient of `span`, if it waits for the update; or none
  Operand slot;      // the unit's gradient slot: the whole gradient, before the reduction
};

UnitPlaces unit_places(const Plan& plan, const Unit& unit, int rank, const UnitOffsets& offsets);

// Micro-batches in flight: the device computes one while the next is uploaded.
inline constexpr size_t kMicroSlots = 2;

// Values that pass between host and device, and scratch on the device: offsets in bytes into
// device_io (the device's block) and pinned_io (the host's). Arrays have one entry per micro-batch
// in flight.
struct DeviceIoMap {
  size_t state = 0;                           // ofsdp_run_state: loss, norm, skipped, faults
  std::array<size_t, kMicroSlots> numbers{};  // ofsdp_step_numbers, then the sample indices
  std::array<size_t, kMicroSlots> inputs{};   // the micro-batch's columns
  size_t partials = 0;  // double: partial sums of the gradient norm, or of parameter norms
  size_t squares = 0;   // double: two per parameter, the squared norms of parameter and step
  size_t means = 0;     // float: per matrix, the mean of Adafactor's row factors
  // For DeviceRules (runtime/engine/device/device_rules.h), an update that the model file brings:
  // its scalars on the device and on the host, and its scratch.
  std::array<size_t, kMicroSlots> scalars{}, pinned_scalars{};
  size_t rules = 0;
  size_t slices = 0;                      // SliceRoom
  size_t exact_sum = 0, exact_limbs = 0;  // the exact norm of --deterministic across_ranks
  size_t device_bytes = 0;                // the size of device_io

  std::array<size_t, kMicroSlots> pinned_numbers{};   // the source of `numbers`
  std::array<size_t, kMicroSlots> pinned_results{};   // copies of `state` after a micro-batch
  std::array<size_t, kMicroSlots> pinned_measured{};  // rows for metrics, of one micro-batch
  size_t mark = 0;          // the latest collective's number (runtime/engine/device/device_ranks.h)
  size_t bounce = 0;        // buffer of kBounceBytes, through which whole regions are copied
  size_t pinned_bytes = 0;  // the size of pinned_io
};

inline constexpr size_t kBounceBytes = size_t{4} << 20;

// Counts for an optimizer on a device that needs parameter norms (LAMB) or factors (Adafactor); all
// 0 for others.
struct DeviceNormNeeds {
  int64_t parameters = 0;  // in the model
  int64_t most_parts = 0;  // parameters in the unit that has most
  int64_t matrices = 0;    // whose second moments are factored
};
DeviceNormNeeds device_norm_needs(const Plan& plan);

// `inputs`, `measured`: bytes of the columns of a full micro-batch, and of its rows for metrics,
// each aligned. `batch_size`: its samples. `most_owned`: elements in the largest shard.
DeviceIoMap map_device_io(size_t inputs, size_t measured, int64_t batch_size, int64_t most_owned,
                          const DeviceNormNeeds& norms);

// Scratch for --deterministic across_ranks on a device: gradients are summed slice by slice, where
// a slice is a fixed part of the global batch, so that results do not depend on the number of ranks
// ([Note: the same bits on any number of ranks] in fsdp/plan/plan.h). After each micro-batch, which
// is one slice per rank, each rank gets its shard's gradients from all ranks and adds them in rank
// order. The norm is exact (kernels/optimizers/squares.h). Points into DeviceIoMap's device block;
// units use it one after the other, on the communication stream.
struct SliceRoom {
  std::byte* parts = nullptr;  // [ranks, shard], in the slot's dtype; unused if there is one rank
  float* sum = nullptr;        // [shard]: the sum, if the unit keeps no gradient
  float* rounded = nullptr;    // [shard]: scratch to round the sum to the reduction dtype
};

SliceRoom slice_room(const Plan& plan, const Unit& unit, std::byte* slices);
// Adds a SliceRoom for the largest unit, and memory for the exact norm, to `io`.
void add_slices(DeviceIoMap& io, const Plan& plan);

}  // namespace ofsdp::runtime
