// OffloadPlan: where the bytes lie that --cpu-offload keeps in pinned host memory, and the slots on
// the device through which accumulated gradients pass.
//
// Per unit, of what the rank owns: masters and optimizer state in float32; in Plan::param_dtype,
// where that is another type, the copy from which the device takes them; the gradient as it has
// landed; and with CpuOffload::kParams the frozen parameters.
//
//   optimizer   what gathers start from, accumulated gradients and frozen parameters stay on the
//               device
//   params      none of these; a gradient that is summed over micro-batches goes up into a slot, is
//               added to there (the norm is the device's) and comes down again
//
// A gradient that is summed again over copies of the model (hybrid strategies) has its place on the
// device in both; gradients that stay whole over micro-batches (no_shard, zero1) have their slots.
// (Ren et al. 2021, "ZeRO-Offload"; PyTorch's CPUOffloadPolicy.)
//
// Pure.
#pragma once

#include <vector>

#include "kernels/core/memory.h"
#include "runtime/program/schedule.h"

namespace ofsdp::runtime {

struct OffloadedUnit {
  size_t owned = 0;  // masters
  size_t rest = 0;  // what the device takes: in Plan::param_dtype; that of masters if it is float32
  size_t frozen = 0;    // kParams
  size_t gradient = 0;  // as it has landed
  std::vector<size_t> optimizer;
  // Sums over micro-batches are float32 and not rounded again; others have the slot's type, and are
  // rounded to the reduction's when they are read.
  DType landed = DType::kFloat32, rounded_to = DType::kFloat32;
  bool summed = false;        // it lands from where it was summed up, not from the unit's slot
  bool passes_slots = false;  // that sum is on the host
};

struct OffloadPlan {
  size_t bytes = 0;            // pinned
  size_t parameter_bytes = 0;  // shares of the sum, for the table
  size_t optimizer_bytes = 0;
  size_t gradient_bytes = 0;
  size_t decision = 0;  // ofsdp_run_state as of the update that is due
  size_t arrivals = 0;  // int64: of the decision, then of each unit; 1 when it has arrived
  std::vector<OffloadedUnit> units;

  size_t slot_bytes = 0;  // of a slot on the device
  int slots = 0;          // one after the other
};

// `accumulates`: an update has several micro-batches. `ahead`: units whose copies are under way at
// once.
OffloadPlan plan_offload(const Plan& plan, int optimizer_states, bool accumulates, int ahead);

}  // namespace ofsdp::runtime
