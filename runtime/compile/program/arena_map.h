// ArenaMap: the offset of each value in the rank's arena, for one program, before anything is
// allocated. Activations, gathered units and workspaces share the arena over disjoint lifetimes; so
// does a micro-batch's gradient if gradients stay whole until the update. A view shares the bytes
// of the viewed value, and operators that can work in place do so (storage_of).
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

#include "importer/graph/graph.h"
#include "kernels/core/memory.h"
#include "runtime/compile/program/schedule.h"

namespace ofsdp::runtime {

// Storage: values that share bytes have one storage, which the arena map places and
// operands point to.
//
// [Note: sums of gradients] If several nodes contribute to a parameter's gradient (a tied
// embedding), each adds to the previous sum, in place if the operator can. The sum is in the
// gradient's slot from the first part on, so nothing is stored twice or copied: the slot is
// acquired before the node that writes the first part (schedule.cpp).

// Returns for each value the owner of the bytes: itself, the viewed value, or the parameter's
// gradient into which it is added up.
std::vector<ValueId> storage_of(const Graph& graph);

// Returns true for each value outside of the arena, in memory that peers read: parameters'
// gradients and joined rows.
std::vector<bool> has_own_place(const Graph& graph);

// Returns how many of the node's inputs have storage `root`. A node that reads it once may
// overwrite it.
int64_t reads_of(const Node& node, const std::vector<ValueId>& storage, ValueId root);

// Appends `bytes` at `end` and returns the offset. Both stay multiples of kTensorAlignment.
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

// Sets offsets greedily by size, such that pieces do not overlap while both live.
// Returns the bytes needed. O(n^2).
size_t place(std::vector<MemoryPiece>& pieces);

struct ArenaMap {
  size_t arena_bytes = 0;
  size_t peak_activations = 0;  // bytes at peak_step, the step with the most live bytes
  size_t peak_gathered = 0;
  size_t peak_workspace = 0;
  int peak_step = -1;
  std::vector<size_t> live;           // per step: bytes in use
  std::vector<int64_t> value_offset;  // per value: activations only
  std::vector<int64_t> step_offset;   // per step: Gather's slot; workspace of Run, Orthogonalize
  std::vector<int64_t> accumulate_offset;  // per unit: gradients that Accumulate adds; or -1
};

// `workspace`: bytes per node. `matrices`: CompileOptions::matrices, which work in the arena too.
ArenaMap map_arena(const Graph& graph, const Plan& plan, const Schedule& schedule,
                   const std::vector<size_t>& workspace,
                   const std::vector<MatrixSteps>& matrices = {});

struct GradientSlots {
  size_t bytes = 0;
  std::vector<size_t> offset;  // per unit
  std::vector<std::vector<int>>
      shares_bytes;  // per unit: units with an overlapping slot, and itself
};

// Assigns slots by the order in which each of the run's training schedules writes and reduces them:
// micro-batches of other sizes or places in the update may reduce in another order. A slot is
// written from Acquire on, or by Accumulate alone. `reduces_at_once`: reductions follow Post
// (CompileOptions::on_device). Then a slot stays until the next unit's reduction begins, so that
// gradients are written while the reduction reads.
GradientSlots map_gradient_slots(const Plan& plan, const std::vector<const Schedule*>& schedules,
                                 bool reduces_at_once = false);

struct JoinSlots {
  size_t bytes = 0;
  std::vector<size_t> offset;  // per ofsdp.JoinRows, in node order
};

// The graphs use the same slots in turn.
JoinSlots map_join_slots(const std::vector<const Graph*>& graphs);

}  // namespace ofsdp::runtime
