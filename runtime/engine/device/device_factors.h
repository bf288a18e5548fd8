// DeviceFactors: the factors of second moments (kernels/optimizers/factors.h) in a device's memory:
// the sums that ranks add up, the factors' advance, and the mean of the row factors of each matrix,
// which directions need.
//
// Ownership: views. Threads: one. It only puts work on the communication stream. Errors: what the
// device says.
#pragma once

#include <vector>

#include "kernels/core/device.h"
#include "runtime/engine/optimizer_step.h"

namespace ofsdp::runtime {

struct DeviceFactorsContext {  // what outlives it
  Device& device;
  const Plan& plan;
  const std::vector<UnitState>& units;  // device addresses
  const OptimizerStep& optimizer;
  float* means;
  const ofsdp_run_state* state;
};

class DeviceFactors {
 public:
  explicit DeviceFactors(const DeviceFactorsContext& context);

  // `gradient`: of the first of the unit's elements `part`; `sums`: of the unit, cleared.
  Status sum(int unit, Span part, const float* gradient, float* sums) const;
  // With the sums of all ranks.
  Status advance(int unit, const float* sums) const;
  // Returns those of a factored parameter, by the numbers of its matrices.
  const float* means(int parameter) const { return means_[static_cast<size_t>(parameter)]; }

 private:
  DeviceFactorsContext context_;
  std::vector<float*> means_;  // per parameter; null: it has no factors
};

}  // namespace ofsdp::runtime
