// DeviceStepLengths: what StepLengths is for parameters and optimizer state in a device's memory.
// The squares of each parameter, and of the direction of its step, are summed on the device over
// what this rank alone represents, then over ranks, by their devices; the length follows from them
// there, so the host reads nothing.
//
// The parts and their blocks are those of [Note: the norms of parameters] in step_lengths.h. How a
// block is summed, and how ranks are added up, is the device's.
//
// Ownership: views. Threads: one. It only puts work on the communication stream. Errors: what the
// device says.
#pragma once

#include <vector>

#include "runtime/engine/device/device_factors.h"
#include "runtime/engine/device/device_optimizer.h"
#include "runtime/engine/device/device_ranks.h"
#include "runtime/engine/optimizer_step.h"
#include "runtime/program/device_memory.h"

namespace ofsdp::runtime {

struct DeviceNormsContext {  // what outlives it
  Device& device;
  const Plan& plan;
  const std::vector<UnitState>& units;  // device addresses
  const OptimizerStep& optimizer;       // whose segments are used
  const DeviceFactors& factors;
  const DeviceOptimizers& on_device;  // per group
  double* squares;
  double* partials;
  const ofsdp_run_state* state;
};

class DeviceStepLengths {
 public:
  // REQUIRES: an optimizer whose steps are those of whole parameters; `agree`: that needs norms.
  DeviceStepLengths(const DeviceNormsContext& context, DeviceRanks& ranks);

  Status agree(const ofsdp_step_numbers* numbers);
  Status apply(int unit, const ofsdp_step_numbers* numbers);

 private:
  using Parts = std::vector<ofsdp_parameter_part>;
  using GroupParts = std::vector<Parts>;

  template <typename Takes>
  GroupParts parts_of(int unit, const Span& span, const Takes& takes) const;
  ofsdp_parameter_part part_of(int unit, const OptimizerStep::Segment& segment, int64_t begin,
                               int64_t count) const;
  ofsdp_parameter_parts encode(int unit, const Parts& parts,
                               const ofsdp_step_numbers* numbers) const;

  DeviceNormsContext context_;
  DeviceRanks& ranks_;
  int64_t parameters_;
  std::vector<int64_t> counts_;                  // per parameter, elements
  std::vector<GroupParts> owned_, represented_;  // per unit
};

}  // namespace ofsdp::runtime
