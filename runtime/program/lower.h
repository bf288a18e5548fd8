// lower: turns a schedule into the operations of one rank (operation.h). Takes every decision that
// follows from schedule, plan, memory plan and the position of the micro-batch. Decisions that need
// values (an empty micro-batch, a loss that is NaN, a skipped update) are the engine's.
#pragma once

#include "runtime/program/program.h"
#include "runtime/program/rank_memory.h"

namespace ofsdp::runtime {

// The channels on which ranks post that something is complete and await that it was read
// (fsdp/comm/communicator.h): two a unit, three for all units, one a node that joins rows.
struct Channels {
  static constexpr int kOfUnit = 2, kOfAll = 3;

  int units = 0;

  int gradient(int unit) const { return unit; }
  int gradient_shard(int unit) const { return units + unit; }  // summed over copies
  int matrices() const { return kOfUnit * units; }             // the room for them, of all ranks
  int matrix_shards() const { return kOfUnit * units + 1; }    // and of those that share a copy
  int watch() const { return kOfUnit * units + 2; }
  int rows(int join) const { return kOfUnit * units + kOfAll + join; }
};

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
