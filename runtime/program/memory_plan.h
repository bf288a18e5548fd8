// MemoryPlan: the offset of every value of one program in the rank's arena, before anything is
// allocated. Activations, gathered units and workspaces share the arena over disjoint lifetimes; so
// does a micro-batch's gradient if gradients stay whole until the update. A view shares the bytes
// of the viewed value, and operators that can work in place do so (value_storage.h).
//
// Gradients are in GradientSlots, and joined rows in JoinSlots (one for each ofsdp.JoinRows),
// outside of the arena: in the shared segment, at the same offsets on every rank and for every
// batch shape.
//
// Offsets are multiples of 64 bytes; -1 means not in the arena. Placement is greedy by size
// (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/memory.h"
#include "runtime/program/schedule.h"

namespace ofsdp::runtime {

// Appends `bytes` at `end` and returns their offset. Both stay multiples of kTensorAlignment.
inline size_t take(size_t& end, size_t bytes) {
  const size_t offset = end;
  end += align_up(bytes, kTensorAlignment);
  return offset;
}

struct MemoryPiece {
  size_t bytes = 0;
  int first = 0;  // steps, inclusive
  int last = 0;
  size_t offset = 0;  // result
};

// Sets the offsets so that pieces that live at the same time do not overlap, greedily by size.
// Returns the bytes needed. O(n^2).
size_t place(std::vector<MemoryPiece>& pieces);

struct MemoryPlan {
  size_t arena_bytes = 0;
  size_t peak_activations = 0;  // bytes at peak_step, the step with the most live bytes
  size_t peak_gathered = 0;
  size_t peak_workspace = 0;
  int peak_step = -1;
  std::vector<size_t> live;           // per step: bytes in use
  std::vector<int64_t> value_offset;  // per value: of activations
  std::vector<int64_t> step_offset;   // per step: Gather's slot; workspace of Run, Orthogonalize
  std::vector<int64_t> accumulate_offset;  // per unit: gradients that Accumulate adds; or -1
};

// `workspace`: bytes per node. `matrices`: CompileOptions::matrices, which work in the arena too.
MemoryPlan plan_memory(const Graph& graph, const Plan& plan, const Schedule& schedule,
                       const std::vector<size_t>& workspace,
                       const std::vector<MatrixSteps>& matrices = {});

struct GradientSlots {
  size_t bytes = 0;
  std::vector<size_t> offset;  // per unit
  std::vector<std::vector<int>>
      shares_bytes;  // per unit: units with an overlapping slot, and itself
};

// Assigns slots by the order of Acquire and Reduce in a training schedule.
GradientSlots plan_gradient_slots(const Plan& plan, const Schedule& schedule);

struct JoinSlots {
  size_t bytes = 0;
  std::vector<size_t> offset;  // per ofsdp.JoinRows of a program, in the order of nodes
};

// The graphs use the same slots in turn.
JoinSlots plan_join_slots(const std::vector<const Graph*>& graphs);

}  // namespace ofsdp::runtime
