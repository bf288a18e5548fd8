#include "runtime/log/unit_norms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/text.h"

namespace ofsdp::runtime {
namespace {

constexpr size_t kGrowthsShown = 6;

// NaN counts as larger than all numbers.
double size_of(float norm) {
  return std::isnan(norm) ? std::numeric_limits<double>::infinity() : static_cast<double>(norm);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Adds `growth` if the values, one per update, grow at the end.
void add_growth(const NormHistory& history, const std::vector<double>& values, Growth growth,
                std::vector<Growth>& list) {
  for (size_t i = values.size(); i-- > 1;) {
    const auto end = values.begin() + static_cast<ptrdiff_t>(i);
    const double before = median({end - static_cast<ptrdiff_t>(std::min(i, kNormsBefore)), end});
    const bool grown = before > 0 && values[i] > kGrowth * before;
    if (!grown) break;
    growth.step = history.step(i);
    growth.before = before;
    growth.then = values[i];
  }
  if (growth.step == 0) return;
  growth.last = values.back();
  list.push_back(growth);
}

}  // namespace

std::vector<std::string> watched_columns(std::span<const WatchedUnit> units) {
  std::vector<std::string> columns;
  for (const NormKind& kind : kNormKinds) {
    for (const WatchedUnit& unit : units) {
      columns.push_back(format_text("watch/{}/{}", kind.key, unit.name));
    }
  }
  return columns;
}

NormHistory::NormHistory(size_t units, std::span<std::byte> memory)
    : units_(units),
      steps_(reinterpret_cast<int64_t*>(memory.data()), kKept),
      norms_(reinterpret_cast<UnitNorms*>(memory.data() + kKept * sizeof(int64_t)), kKept * units) {
}

void NormHistory::add(int64_t step, std::span<const WatchedUnit> units) {
  const size_t place = added_++ % kKept;
  steps_[place] = step;
  for (size_t u = 0; u < units.size(); ++u) norms_[place * units_ + u] = units[u].norms;
}

std::vector<Growth> growths(const NormHistory& history, size_t units) {
  std::vector<Growth> list;
  for (size_t u = 0; u < units; ++u) {
    for (const bool weights : {false, true}) {
      std::vector<double> values;
      for (size_t i = 0; i < history.size(); ++i) {
        const UnitNorms& norms = history.norms(i, u);
        values.push_back(size_of(weights ? norms.weight_norm : norms.grad_norm));
      }
      add_growth(history, values, {.unit = u, .weights = weights}, list);
    }
  }
  std::ranges::stable_sort(list, [](const Growth& a, const Growth& b) {
    return a.step != b.step ? a.step < b.step : a.last / a.before > b.last / b.before;
  });
  return list;
}

std::string growth_text(const NormHistory& history, std::span<const WatchedUnit> units) {
  if (history.size() == 0) return "";
  const int64_t last = history.step(history.size() - 1);
  if (history.size() == 1) return format_text("norms: only step {} was watched", last);
  const std::vector<Growth> list = growths(history, units.size());
  if (list.empty()) {
    return format_text(
        "norms did not grow: none of step {}, the last watched, is more than {} times "
        "its median before",
        last, kGrowth);
  }
  std::string text =
      format_text("norms grew from step {} on (to step {}, the last watched):", list[0].step, last);
  for (size_t i = 0; i < std::min(list.size(), kGrowthsShown); ++i) {
    const Growth& growth = list[i];
    const WatchedUnit& unit = units[growth.unit];
    text +=
        format_text("\n  {} of unit {} ({}): {:.3g} before, {:.3g} at step {}, {:.3g} at step {}",
                    growth.weights ? "weights " : "gradient", unit.unit, escaped(unit.name),
                    growth.before, growth.then, growth.step, growth.last, last);
  }
  if (list.size() > kGrowthsShown) {
    text += format_text("\n  and {} more", list.size() - kGrowthsShown);
  }
  return text;
}

}  // namespace ofsdp::runtime
