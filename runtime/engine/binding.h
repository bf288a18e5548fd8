// BoundProgram: a program whose operands have addresses, as engines execute it. bind() makes it
// once, before the first step, from a step program, a rank's memory map and the mapped memory.
// Runner owns it; addresses point into the rank's memory, and the KernelCache owns the kernels.
//
// Only the inputs change: for each micro-batch the engine writes the columns' addresses into the
// operands that BoundProgram::inputs lists.
#pragma once

#include <span>
#include <vector>

#include "runtime/compile/program/lower.h"
#include "runtime/engine/memory.h"

namespace ofsdp::runtime {

// A node's kernel and operands.
struct BoundRun {
  Kernel* kernel = nullptr;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  std::byte* workspace = nullptr;
  const Node* node = nullptr;
};

// An operand that is an input column.
struct InputPatch {
  int run;      // index in BoundProgram::runs
  int operand;  // index in BoundRun::inputs
  int column;   // index in Graph::inputs
};

struct BoundProgram {
  const StepProgram* plan = nullptr;
  std::vector<Operation> operations;
  std::vector<Operation> host;  // --cpu-offload: the update on the host, after `operations`
  std::vector<BoundRun> runs;
  std::vector<InputPatch> inputs;
  std::vector<const float*> losses;  // one per Graph::terms
  const int64_t* matches = nullptr;  // [2]: correct predictions, labels not ignored; or null
  std::vector<std::span<const double>> measured;  // one per Graph::measured
};

struct BindingContext {
  LoweringContext lowering;
  const MemoryBases& memory;
  std::byte* host = nullptr;      // --cpu-offload: pinned host memory
  float* loss_weights = nullptr;  // one per loss
};

BoundProgram bind(const StepProgram& program, const BindingContext& context);

}  // namespace ofsdp::runtime
