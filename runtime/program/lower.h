// lower: the schedule of a program as operations of one rank (operation.h). Every decision that
// follows from schedule, plan, memory plan and place of the micro-batch is taken here; what values
// decide (a micro-batch without samples, a loss that is NaN, an update that is skipped) is left to
// the engine.
//
// Pure. Ownership: values; kernels belong to the program's cache. Threads: any. Errors: none.
#pragma once

#include "runtime/program/program.h"
#include "runtime/program/unit_state.h"

namespace ofsdp::runtime {

struct LoweringContext {
  const Plan& plan;
  int rank = 0;
  const RankMemoryPlan& memory;
  const GradientSlots& slots;
  const KeptPlan& kept;
  bool on_device = false;
};

struct LoweredProgram {
  std::vector<Operation> operations;
  std::vector<Operation> host;    // after them, of an offload: the update
  std::vector<Operand> losses;    // of Graph::terms
  Operand matches;                // right answers, kept labels; or none
  std::vector<Operand> measured;  // of Graph::measured
};

LoweredProgram lower(const ProgramPlan& program, const LoweringContext& context);

// The bytes that an offload copies in a micro-batch and, if that ends one, in its update.
struct OffloadTraffic {
  size_t up = 0;
  size_t down = 0;
};
OffloadTraffic offload_traffic(const LoweredProgram& program);

// A line for each operation.
std::string text(const LoweredProgram& program);

}  // namespace ofsdp::runtime
