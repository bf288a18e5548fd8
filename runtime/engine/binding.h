// BoundProgram: a lowered program with every operand's address; engines execute it. Addresses point
// into the rank's memory, kernels belong to the cache, and Runner owns the program. Each
// micro-batch sets the data pointers of `inputs`.
#pragma once

#include <span>
#include <vector>

#include "runtime/compile/program/lower.h"
#include "runtime/engine/memory.h"

namespace ofsdp::runtime {

struct BoundRun {
  Kernel* kernel = nullptr;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  std::byte* workspace = nullptr;
  const Node* node = nullptr;
};

struct InputPatch {
  int run;
  int operand;
  int column;  // index in Graph::inputs
};

struct BoundProgram {
  const StepProgram* plan = nullptr;
  std::vector<Operation> operations;
  std::vector<Operation> host;  // LoweredProgram::host
  std::vector<BoundRun> runs;
  std::vector<InputPatch> inputs;
  std::vector<const float*> losses;               // one per Graph::terms
  const int64_t* matches = nullptr;               // right answers, kept labels; or null
  std::vector<std::span<const double>> measured;  // one per Graph::measured
};

struct BindingContext {
  LoweringContext lowering;
  const MemoryBases& memory;
  std::byte* host = nullptr;  // pinned by an offload
  float* loss_weights = nullptr;
};

BoundProgram bind(const StepProgram& program, const BindingContext& context);

}  // namespace ofsdp::runtime
