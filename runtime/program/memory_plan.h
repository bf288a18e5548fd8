// MemoryPlan: where everything of one program lies, in bytes from the start of the rank's arena,
// before anything is allocated. Activations, gathered units, workspaces and (where gradients stay
// whole until the update) a micro-batch's own gradients share the arena over disjoint lifetimes; a
// view has the bytes of what it views; an operator that may works in place (value_storage.h).
//
// Gradients do not lie in the arena but in the slots that the reduction reads (GradientSlots): in
// the shared segment, the same offsets on every rank and for every batch shape.
//
// Joined rows lie in slots of the shared segment too, one for each ofsdp.JoinRows of a program, at
// the same offset on every rank and for every batch shape (JoinSlots).
//
// Offsets are multiples of 64 bytes; -1 means not in the arena. Placement is greedy by size
// (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020). Pure;
// threads: any.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/program/schedule.h"

namespace ofsdp::runtime {

struct MemoryPlan {
  size_t arena_bytes = 0;
  size_t peak_activations = 0;  // at the step where the live bytes are most: of which these
  size_t peak_gathered = 0;
  size_t peak_workspace = 0;
  int peak_step = -1;
  std::vector<size_t> live;           // per step: bytes in use
  std::vector<int64_t> value_offset;  // per value: of activations
  std::vector<int64_t> step_offset;   // per step: Gather's slot; workspace of Run, Orthogonalize
  std::vector<int64_t>
      accumulate_offset;  // per unit: where gradients go that Accumulate then adds; or -1
};

// `workspace`: bytes per node.
// `matrices`: those of CompileOptions, whose work is done in the arena too.
MemoryPlan plan_memory(const Graph& graph, const Plan& plan, const Schedule& schedule,
                       const std::vector<size_t>& workspace,
                       const std::vector<MatrixSteps>& matrices = {});

struct GradientSlots {
  size_t bytes = 0;
  std::vector<size_t> offset;  // per unit
  std::vector<std::vector<int>>
      shares_bytes;  // per unit: units whose slot overlaps, itself included
};

// From the order of Acquire and Reduce in a training schedule.
GradientSlots plan_gradient_slots(const Plan& plan, const Schedule& schedule);

struct JoinSlots {
  size_t bytes = 0;
  std::vector<size_t> offset;  // per ofsdp.JoinRows of a program, in the order of nodes
};

// For graphs whose joins take turns at the same slots.
JoinSlots plan_join_slots(const std::vector<const Graph*>& graphs);

}  // namespace ofsdp::runtime
