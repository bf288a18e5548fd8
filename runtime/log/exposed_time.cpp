#include "runtime/log/exposed_time.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/text.h"

namespace ofsdp::runtime {
namespace {

constexpr size_t kKept = 512;      // times for each unit
constexpr size_t kUnitsShown = 5;  // the slowest

// Returns the largest of each value over all ranks.
Result<std::vector<double>> find_slowest(const std::vector<double>& mine,
                                         Communicator& communicator) {
  const auto size = static_cast<size_t>(communicator.size());
  std::vector<double> slowest(mine.size());
  std::vector<double> all;
  for (size_t begin = 0; begin < mine.size(); begin += kMaxExchange) {
    const size_t count = std::min<size_t>(kMaxExchange, mine.size() - begin);
    all.resize(count * size);
    OFSDP_RETURN_IF_ERROR(communicator.exchange(std::span(mine).subspan(begin, count), all,
                                                {"exchange of waiting times", -1, 0}));
    for (size_t i = 0; i < all.size(); ++i) {
      double& entry = slowest[begin + i % count];
      entry = std::max(entry, all[i]);
    }
  }
  return slowest;
}

double or_zero(double ms) { return std::isfinite(ms) ? ms : 0; }

}  // namespace

ExposedTime::ExposedTime(size_t units) : present_(units + 1), total_(kKept) {
  for (size_t i = 0; i <= units; ++i) medians_.emplace_back(kKept);
}

void ExposedTime::begin_update() { std::ranges::fill(present_, 0); }

void ExposedTime::end_update() {
  for (size_t i = 0; i < present_.size(); ++i) {
    medians_[i].add(static_cast<double>(present_[i]) * 1e-6);
  }
  total_.add(static_cast<double>(std::accumulate(present_.begin(), present_.end(), int64_t{0})) *
             1e-6);
}

Result<std::string> exposed_text(const ExposedTime& time, const Plan& plan,
                                 Communicator& communicator, bool units) {
  std::vector<double> mine{or_zero(time.median_total_ms())};
  for (int u = -1; u < static_cast<int>(plan.units.size()); ++u) {
    mine.push_back(or_zero(time.median_ms(u)));
  }
  OFSDP_ASSIGN_OR_RETURN(const auto slowest, find_slowest(mine, communicator));
  if (communicator.size() == 1) return std::string();
  std::vector<size_t> order(plan.units.size() + 1);
  std::iota(order.begin(), order.end(), size_t{1});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return slowest[i]; });
  order.resize(units ? std::min(order.size(), kUnitsShown) : 0);
  // Aligns the decimal points.
  const double longest = order.empty() ? 0 : slowest[order[0]];
  const int decimals = decimals_of_three_digits(std::max(slowest[0], longest));
  const size_t width = readable_number(longest, decimals).size();
  std::string text = format_text("waiting for communication: {} ms per step (median, slowest rank)",
                                 readable_number(slowest[0], decimals));
  for (const size_t i : order) {
    const std::string what =
        i == 1 ? "the end of the update"
               : format_text("unit {} ({})", i - 2, escaped(plan.units[i - 2].name));
    const std::string ms = readable_number(slowest[i], decimals);
    text += format_text("\nwaited {}{} ms for {}", std::string(width - ms.size(), ' '), ms, what);
  }
  return text;
}

}  // namespace ofsdp::runtime
