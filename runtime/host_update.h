// HostUpdate: the update of units whose masters and optimizer state rest in host memory while a
// device computes, with the optimizers of the CPU path.
//
// A gradient is taken as it has landed, block by block: widened, rounded to what ranks reduce in,
// scaled. Blocks go to all threads of the rank, but for programs and plug-ins; optimizers are
// elementwise, so neither blocks nor threads change a bit.
//
// Ownership: views. Threads: the one that runs the schedule; it uses the pool. No allocation in `run`.
#pragma once

#include "runtime/optimizer_step.h"

namespace ofsdp {

class HostUpdate {
 public:
  // `step`: of the units of the host; `pinned`: what the offsets of `offload` count from.
  HostUpdate(OptimizerStep& step, const std::vector<UnitState>& units, const OffloadPlan& offload,
             const std::byte* pinned)
      : step_(step), units_(units), offload_(offload), pinned_(pinned) {}

  // `factor`: what gradients are multiplied with, or null.
  void run(int unit, const UpdateNumbers& numbers, const float* factor);

 private:
  void run_block(int unit, int64_t begin, int64_t count, const UpdateNumbers& numbers,
                 const float* factor);

  OptimizerStep& step_;
  const std::vector<UnitState>& units_;
  const OffloadPlan& offload_;
  const std::byte* pinned_;
};

}  // namespace ofsdp
