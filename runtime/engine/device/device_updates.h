// The parts of an optimizer on a device: the update of a stretch (DeviceOptimizer), Adafactor's
// factors (DeviceFactors) and the norms that LAMB needs (DeviceStepLengths). They put work on the
// communication stream; the host reads nothing. Views: device, plan and states outlive them. Errors
// are the device's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/optimizer.h"
#include "runtime/engine/device/device_ranks.h"
#include "runtime/engine/optimizer_step.h"
#include "runtime/program/device_memory.h"

namespace ofsdp::runtime {

// One pass over a stretch of a shard.
struct DeviceOptimizerDrop {
  Device* device = nullptr;
  void operator()(ofsdp_device_optimizer* optimizer) const { device->drop_optimizer(optimizer); }
};
using DeviceOptimizer = std::unique_ptr<ofsdp_device_optimizer, DeviceOptimizerDrop>;

using DeviceOptimizers = std::vector<DeviceOptimizer>;

// Returns null if the device has no optimizer called `name`.
inline DeviceOptimizer make_device_optimizer(Device& device, const std::string& name,
                                             const OptimizerSettings& s) {
  const ofsdp_optimizer_settings settings{
      s.momentum, s.beta1, s.beta2, s.eps, s.rho, s.nesterov ? 1 : 0, s.bias_correction ? 0 : 1};
  return DeviceOptimizer(device.make_optimizer(name.c_str(), settings), {&device});
}

struct DeviceFactorsContext {  // outlives DeviceFactors
  Device& device;
  const Plan& plan;
  const std::vector<UnitState>& units;  // device addresses
  const OptimizerStep& optimizer;
  float* means;
  const ofsdp_run_state* state;
};

// Second moments as factors of rows and columns (kernels/optimizers/factors.h): sums of squares,
// which ranks add up, the update of the factors, and the mean row factor of each matrix.
class DeviceFactors {
 public:
  explicit DeviceFactors(const DeviceFactorsContext& context);

  // Writes the sums of squares of the unit's elements `part`, which begin at `gradient`; other sums
  // become 0.
  Status sum(int unit, Span part, const float* gradient, float* sums) const;
  // Updates the factors. REQUIRES: `sums` are added up over all ranks.
  Status advance(int unit, const float* sums) const;
  // Returns the mean row factor of each matrix of a factored parameter.
  const float* means(int parameter) const { return means_[static_cast<size_t>(parameter)]; }

 private:
  DeviceFactorsContext context_;
  std::vector<float*> means_;  // per parameter; null: it has no factors
};

struct DeviceNormsContext {  // outlives DeviceStepLengths
  Device& device;
  const Plan& plan;
  const std::vector<UnitState>& units;  // device addresses
  const OptimizerStep& optimizer;       // for its segments
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
