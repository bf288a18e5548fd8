// BoundProgram: a ProgramPlan with every offset turned into an address. What the executor's loop
// reads.
//
// Ownership: views of RankMemory; kernels belong to the cache. The session owns it. Threads: one.
#pragma once

#include <memory>
#include <vector>

#include "runtime/engine/optimizer_step.h"
#include "runtime/program/program.h"
#include "runtime/program/rank_memory.h"

namespace ofsdp::runtime {

struct BoundRun {
  Kernel* kernel = nullptr;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  std::byte* workspace = nullptr;
  const Node* node = nullptr;
};

struct BoundStep {
  StepKind kind;
  int index;                          // unit, or position in runs
  std::byte* slot = nullptr;          // Gather, Carry: where to
  const std::byte* source = nullptr;  // Carry: where from
  size_t bytes = 0;                   // Carry
};

// Where the data pointer of an input stands, to be set for each micro-batch.
struct InputPatch {
  int run;
  int operand;
  int column;  // index in Graph::inputs
};

struct BoundProgram {
  const ProgramPlan* plan = nullptr;
  std::vector<BoundStep> steps;
  std::vector<BoundRun> runs;
  std::vector<InputPatch> inputs;
  std::vector<std::byte*> accumulate;  // per unit: this micro-batch's gradients, or null
  const float* loss = nullptr;
  const int64_t* matches = nullptr;  // right answers, kept labels; or null
};

struct BindingContext {
  const Plan& plan;
  const RankMemoryPlan& offsets;
  const MemoryBases& memory;
  const std::vector<UnitState>& units;
  const KeptPlan& kept;
  float* loss_weight;
};

BoundProgram bind(const ProgramPlan& program, const BindingContext& context);

}  // namespace ofsdp::runtime
