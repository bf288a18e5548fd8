// HostUpdate: the update of units whose masters and optimizer state rest in host memory while a
// device computes, with the optimizers of the CPU path.
//
// A gradient is taken as it has landed, block by block: widened, rounded to what ranks reduce in,
// scaled. Blocks go to all threads of the rank, but for programs and plug-ins; optimizers are
// elementwise, so neither blocks nor threads change a bit.
//
// If steps need norms of parameters, `run` advances the states, and once all units have been run
// the ranks agree on the norms, as on CPUs, and `take_steps` follows.
//
// Ownership: views. Threads: the one that runs the schedule; it uses the pool. No allocation in
// `run` and `take_steps`; the latter is collective then. Errors: those of the exchange.
#pragma once

#include <optional>

#include "runtime/engine/step_lengths.h"

namespace ofsdp::runtime {

class HostUpdate {
 public:
  // `step`: of the units of the host; `pinned`: what the offsets of `offload` count from.
  HostUpdate(OptimizerStep& step, const std::vector<UnitState>& units, const OffloadPlan& offload,
             const std::byte* pinned, const Plan& plan, Communicator& communicator);

  // `factor`: what gradients are multiplied with, or null.
  void run(int unit, const UpdateNumbers& numbers, const float* factor);
  bool takes_steps() const { return lengths_.has_value(); }
  Status take_steps(const UpdateNumbers& numbers);

 private:
  void run_block(int unit, int64_t begin, int64_t count, const UpdateNumbers& numbers,
                 const float* factor);

  OptimizerStep& step_;
  const std::vector<UnitState>& units_;
  const OffloadPlan& offload_;
  const std::byte* pinned_;
  Communicator& communicator_;
  std::optional<StepLengths> lengths_;
};

}  // namespace ofsdp::runtime
