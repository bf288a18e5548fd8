#include "runtime/trust_ratios.h"

#include <algorithm>
#include <cmath>

namespace ofsdp {

TrustRatios::TrustRatios(const Plan& plan, const std::vector<UnitState>& units, int rank)
    : plan_(plan) {
  size_t parameters = 0;
  for (const Unit& unit : plan.units) {
    const Span part = plan.represented(unit, rank);
    parts_.push_back({part.begin - units[static_cast<size_t>(unit.id)].owned_begin, part.numel});
    for (const UnitParam& p : unit.params) {
      parameters = std::max(parameters, static_cast<size_t>(p.parameter) + 1);
    }
  }
  squares_.resize(2 * parameters);
  ratios_.resize(parameters, 1.0);
  if (plan.across_ranks) exact_.resize(2 * parameters);
  gathered_.resize(static_cast<size_t>(kExchangeMost * plan.world));
}

Status TrustRatios::agree(OptimizerStep& optimizer, const UpdateNumbers& numbers,
                          Communicator& communicator) {
  std::ranges::fill(squares_, 0.0);
  for (ExactSquares& sum : exact_) sum.clear();
  for (const Unit& unit : plan_.units) {
    const auto add = [this](int parameter, std::span<const float> p, std::span<const float> d) {
      const size_t at = 2 * static_cast<size_t>(parameter);
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
  for (size_t p = 0; p < ratios_.size(); ++p) {
    const double of_p = squares_[2 * p], of_d = squares_[2 * p + 1];
    ratios_[p] = of_p == 0 || of_d == 0 ? 1.0 : std::sqrt(of_p) / std::sqrt(of_d);
  }
  return {};
}

Status TrustRatios::exchange(Communicator& communicator, const CollectiveSite& site) {
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

Status TrustRatios::exchange_exact(Communicator& communicator, const CollectiveSite& site) {
  static_assert(ExactSquares::kLimbs <= kExchangeMost);
  const auto all =
      std::span(gathered_).first(ExactSquares::kLimbs * static_cast<size_t>(communicator.size()));
  for (size_t i = 0; i < exact_.size(); ++i) {
    OFSDP_RETURN_IF_ERROR(communicator.exchange(exact_[i].limbs(), all, site));
    squares_[i] = ExactSquares::sum(all);
  }
  return {};
}

}  // namespace ofsdp
