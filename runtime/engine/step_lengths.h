// StepLengths: what the direction of a whole parameter is multiplied with
// (OptimizerDef::step_length, for LAMB the rate times the trust ratio), from norms of parameter and
// direction that all ranks agree on.
//
// [Note: the norms of parameters] A rank sums the squares of the part of each parameter that it
// alone represents, in double, in blocks of kReduceBlock elements from where that part begins;
// partial sums are exchanged and added in the order of ranks. The parts are the same under every
// strategy, so are the bits (hybrid strategies: to rounding). With --deterministic across_ranks the
// sums are exact (ExactSquares), one exchange a norm.
//
// Ownership: borrows plan, units and optimizer. Threads: the one that runs the schedule; `agree` is
// collective. No allocation after make. Errors: those of the exchange.
#pragma once

#include <vector>

#include "fsdp/comm/communicator.h"
#include "runtime/engine/exact_squares.h"
#include "runtime/engine/optimizer_step.h"

namespace ofsdp::runtime {

class StepLengths {
 public:
  StepLengths(const Plan& plan, const std::vector<UnitState>& units, int rank);

  Status agree(OptimizerStep& optimizer, const UpdateNumbers& numbers, Communicator& communicator);
  // Per parameter of the graph.
  std::span<const double> lengths() const { return lengths_; }

 private:
  Status exchange(Communicator& communicator, const CollectiveSite& site);
  Status exchange_exact(Communicator& communicator, const CollectiveSite& site);

  const Plan& plan_;
  std::vector<Span> parts_;          // per unit, what this rank represents of what it owns
  std::vector<double> squares_;      // per parameter: of p, of d
  std::vector<ExactSquares> exact_;  // per parameter: of p, of d; with across_ranks
  std::vector<double> gathered_;
  std::vector<int64_t> counts_;  // per parameter, elements
  std::vector<double> lengths_;
};

}  // namespace ofsdp::runtime
