// HostUpdate: the update of units whose masters and optimizer state rest in host memory while a
// device computes, with the optimizers of the CPU path.
//
// A gradient is taken as it has landed, block by block: widened, rounded to what ranks reduce in,
// scaled. Blocks go to all threads of the rank; optimizers are elementwise, so neither blocks nor
// threads change a bit. A block of new parameters is converted while it is in the cache.
//
// Ownership: views. Threads: the one that runs the schedule; it uses the pool. No allocation in `run`.
#pragma once

#include "runtime/optimizer_step.h"

namespace ofsdp {

class HostUpdate {
 public:
  // `units`: of the host; `pinned`: what the offsets of `offload` count from.
  HostUpdate(const OptimizerDef& optimizer, const OptimizerSettings& settings,
             const OptimizerStep& step, const std::vector<UnitState>& units,
             const OffloadPlan& offload, DType rest_dtype, std::byte* pinned)
      : optimizer_(optimizer),
        settings_(settings),
        segments_(step.segments()),
        units_(units),
        offload_(offload),
        rest_dtype_(rest_dtype),
        pinned_(pinned) {}

  // `factor`: what gradients are multiplied with, or null.
  void run(int unit, const UpdateNumbers& numbers, const float* factor) const;
  // From the masters what the device takes.
  void publish(int unit, int64_t begin, int64_t count) const;

  std::byte* rest(int unit) const { return pinned_ + offloaded(unit).rest; }
  size_t rest_bytes(int unit) const {
    return static_cast<size_t>(state(unit).owned_numel) * dtype_size(rest_dtype_);
  }

 private:
  const OffloadedUnit& offloaded(int unit) const {
    return offload_.units[static_cast<size_t>(unit)];
  }
  const UnitState& state(int unit) const { return units_[static_cast<size_t>(unit)]; }
  void run_block(int unit, int64_t begin, int64_t count, double weight_decay,
                 const UpdateNumbers& numbers, const float* factor) const;

  const OptimizerDef& optimizer_;
  OptimizerSettings settings_;
  const std::vector<std::vector<OptimizerStep::Segment>>& segments_;
  const std::vector<UnitState>& units_;
  const OffloadPlan& offload_;
  DType rest_dtype_;
  std::byte* pinned_;
};

}  // namespace ofsdp
