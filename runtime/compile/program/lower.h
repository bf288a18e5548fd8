// lower: turns a schedule into one rank's operations (operation.h). Takes every decision that
// follows from schedule, shards, memory map and position in the update. The engine decides by
// values: an empty micro-batch, a NaN loss, a skipped update.
#pragma once

#include "runtime/compile/program/memory_map.h"
#include "runtime/compile/program/step_program.h"

namespace ofsdp::runtime {

// Channels on which ranks post complete data and await the readers (fsdp/comm/communicator.h):
// kOfUnit per unit, then kOfAll for all units together, then one per node that joins the ranks'
// rows.
struct Channels {
  static constexpr int kOfUnit = 2, kOfAll = 3;

  int units = 0;

  int gradient(int unit) const { return unit; }
  int gradient_shard(int unit) const { return units + unit; }  // summed over copies
  int matrices() const { return kOfUnit * units; }             // the room, all ranks
  int matrix_shards() const { return kOfUnit * units + 1; }    // the room, ranks that share a copy
  int watch() const { return kOfUnit * units + 2; }
  int rows(int join) const { return kOfUnit * units + kOfAll + join; }
};

struct LoweringContext {
  const Plan& plan;
  int rank = 0;
  const MemoryMap& memory;
  const GradientSlots& slots;
  const KeptValues& kept;
  bool on_device = false;
};

struct LoweredProgram {
  std::vector<Operation> operations;
  std::vector<Operation> host;    // offload: the update, after `operations`
  std::vector<Operand> losses;    // one per Graph::terms
  Operand matches;                // correct predictions, labels not ignored; or none
  std::vector<Operand> measured;  // one per Graph::measured
};

LoweredProgram lower(const StepProgram& program, const LoweringContext& context);

// Bytes that an offload copies in a micro-batch, and in the update that it ends.
struct OffloadTraffic {
  size_t up = 0;
  size_t down = 0;
};
OffloadTraffic offload_traffic(const LoweredProgram& program);

// Returns one line per operation.
std::string text(const LoweredProgram& program);

}  // namespace ofsdp::runtime
