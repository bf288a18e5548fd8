#include "runtime/engine/step_lengths.h"

#include <algorithm>
#include <cmath>

namespace ofsdp::runtime {

StepLengths::StepLengths(const Plan& plan, const std::vector<UnitState>& units, int rank)
    : plan_(plan) {
  size_t parameters = 0;
  for (const Unit& unit : plan.units) {
    const Span part = plan.represented(unit, rank);
    parts_.push_back({part.begin - units[static_cast<size_t>(unit.id)].owned_begin, part.numel});
    for (const UnitParam& p : unit.params) {
      const auto at = static_cast<size_t>(p.parameter);
      parameters = std::max(parameters, at + 1);
      counts_.resize(parameters);
      counts_[at] = p.numel;
    }
  }
  squares_.resize(2 * parameters);
  lengths_.resize(parameters);
  if (plan.across_ranks) exact_.resize(2 * parameters);
  gathered_.resize(static_cast<size_t>(kExchangeMost * plan.world));
}

Status StepLengths::agree(OptimizerStep& optimizer, const UpdateNumbers& numbers,
                          Communicator& communicator) {
  std::ranges::fill(squares_, 0.0);
  for (ExactSquares& sum : exact_) sum.clear();
  for (const Unit& unit : plan_.units) {
    const auto add = [this](const OptimizerStep::Segment& segment, std::span<const float> p,
                            std::span<const float> d) {
      const size_t at = 2 * static_cast<size_t>(segment.parameter);
      if (plan_.across_ranks) {
        exact_[at].add(p);
        exact_[at + 1].add(d);
      } else {
        squares_[at] += sum_of_squares(p);
        squares_[at + 1] += sum_of_squares(d);
      }
    };
    optimizer.visit(unit.id, parts_[static_cast<size_t>(unit.id)], numbers, add);
  }
  const CollectiveSite site{"exchange of parameters' norms", -1, numbers.step};
  OFSDP_RETURN_IF_ERROR(plan_.across_ranks ? exchange_exact(communicator, site)
                                           : exchange(communicator, site));
  for (size_t p = 0; p < lengths_.size(); ++p) {
    if (counts_[p] == 0) continue;
    const ParameterNorms norms{.param = std::sqrt(squares_[2 * p]),
                               .direction = std::sqrt(squares_[2 * p + 1]),
                               .count = counts_[p],
                               .lr = numbers.lr,
                               .step = numbers.optimizer_step};
    lengths_[p] = optimizer.step_length(static_cast<int>(p), norms, numbers);
  }
  return {};
}

Status StepLengths::exchange(Communicator& communicator, const CollectiveSite& site) {
  for (size_t first = 0; first < squares_.size(); first += kExchangeMost) {
    const size_t count = std::min<size_t>(kExchangeMost, squares_.size() - first);
    const auto mine = std::span(squares_).subspan(first, count);
    const auto all = std::span(gathered_).first(count * static_cast<size_t>(communicator.size()));
    OFSDP_RETURN_IF_ERROR(communicator.exchange(mine, all, site));
    std::ranges::fill(mine, 0.0);
    for (size_t i = 0; i < all.size(); ++i) mine[i % count] += all[i];
  }
  return {};
}

Status StepLengths::exchange_exact(Communicator& communicator, const CollectiveSite& site) {
  static_assert(ExactSquares::kLimbs <= kExchangeMost);
  const auto all =
      std::span(gathered_).first(ExactSquares::kLimbs * static_cast<size_t>(communicator.size()));
  for (size_t i = 0; i < exact_.size(); ++i) {
    OFSDP_RETURN_IF_ERROR(communicator.exchange(exact_[i].limbs(), all, site));
    squares_[i] = ExactSquares::sum(all);
  }
  return {};
}

}  // namespace ofsdp::runtime
