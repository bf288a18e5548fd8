// lower: turns a program's schedule into one rank's operations (operation.h). It takes every
// decision that is known before the run: by schedule, shards, memory map and position in the
// update. The engine takes only decisions by values: an empty micro-batch, a NaN loss, a skipped
// update.
#pragma once

#include "runtime/compile/program/memory_map.h"
#include "runtime/compile/program/step_program.h"

namespace ofsdp::runtime {

// Channels on which ranks post complete data and await the readers (fsdp/comm/communicator.h):
// kOfUnit per unit, then kOfAll for all units together, then one per node that joins the ranks'
// rows.
//
// The room is memory in which units in turn gather and sum whole gradients, for optimizers on whole
// matrices (MemoryMap::matrices).
struct Channels {
  static constexpr int kOfUnit = 2, kOfAll = 3;

  int units = 0;

  int gradient(int unit) const { return unit; }
  int gradient_shard(int unit) const { return units + unit; }  // summed over copies
  int matrices() const { return kOfUnit * units; }             // the room, all ranks
  int matrix_shards() const { return kOfUnit * units + 1; }    // the room, ranks that share a copy
  // The norms of all units' gradients and weights, for --watch.
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
  Operand matches;                // int64 [2]: correct predictions, labels not ignored; or none
  std::vector<Operand> measured;  // one per Graph::measured
};

LoweredProgram lower(const StepProgram& program, const LoweringContext& context);

// Bytes that an offload copies in a micro-batch: up to the device, down to the host. The program of
// an update's last micro-batch includes the copies of the update.
struct OffloadTraffic {
  size_t up = 0;
  size_t down = 0;
};
OffloadTraffic offload_traffic(const LoweredProgram& program);

// Returns one line per operation.
std::string text(const LoweredProgram& program);

}  // namespace ofsdp::runtime
