#include "runtime/engine/watch.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/optimizers/squares.h"

namespace ofsdp::runtime {
namespace {

constexpr size_t kMaxLanes = 16;

OFSDP_MULTIARCH void add_largest(const float* values, size_t count, float* lanes) {
  for (size_t i = 0; i + kMaxLanes <= count; i += kMaxLanes) {
    for (size_t k = 0; k < kMaxLanes; ++k) {
      const float size = std::abs(values[i + k]);
      lanes[k] = size > lanes[k] ? size : lanes[k];
    }
  }
}

// Ignores NaN, which the norm shows.
float largest(std::span<const float> values) {
  std::array<float, kMaxLanes> lanes{};
  add_largest(values.data(), values.size(), lanes.data());
  for (size_t i = values.size() / kMaxLanes * kMaxLanes; i < values.size(); ++i) {
    const float size = std::abs(values[i]);
    lanes[0] = size > lanes[0] ? size : lanes[0];
  }
  return std::ranges::max(lanes);
}

}  // namespace

std::vector<WatchedUnit> watched_units(const Plan& plan) {
  std::vector<WatchedUnit> list;
  for (const Unit& unit : plan.units) {
    if (unit.params.empty()) continue;
    const bool again = std::ranges::count(plan.units, unit.name, &Unit::name) > 1;
    list.push_back({unit.id, again ? format_text("{} (unit {})", unit.name, unit.id) : unit.name});
  }
  return list;
}

Watch::Watch(const Plan& plan, int64_t interval, std::span<std::byte> memory)
    : interval_(interval),
      units_(watched_units(plan)),
      place_(plan.units.size()),
      sums_(units_.size()),
      history_(units_.size(), memory) {
  for (size_t i = 0; i < units_.size(); ++i) place_[static_cast<size_t>(units_[i].unit)] = i;
}

size_t Watch::slot_bytes(const Plan& plan) {
  return static_cast<size_t>(plan.world) * watched_units(plan).size() * kNumbers * sizeof(float);
}

void Watch::begin_update(int64_t step) {
  step_ = step;
  due_ = step % interval_ == 0;
  std::ranges::fill(sums_, Sums{});
}

void Watch::add(int unit, std::span<const float> gradient, double squares, const float* weights) {
  if (!due_) return;
  Sums& sums = sums_[place_[static_cast<size_t>(unit)]];
  const std::span<const float> same(weights, gradient.size());
  sums.grad_squares += squares;
  sums.grad_max = std::max(sums.grad_max, largest(gradient));
  sums.weight_squares += sum_of_squares(same);
  sums.weight_max = std::max(sums.weight_max, largest(same));
}

void Watch::write(std::span<float> slot, int rank, double scale) const {
  std::ranges::fill(slot, 0.0f);
  float* to = slot.data() + static_cast<size_t>(rank) * sums_.size() * kNumbers;
  for (const Sums& sums : sums_) {
    *to++ = static_cast<float>(std::sqrt(sums.grad_squares) / scale);
    *to++ = static_cast<float>(sums.grad_max / scale);
    *to++ = static_cast<float>(std::sqrt(sums.weight_squares));
    *to++ = sums.weight_max;
  }
}

std::string growth_text(const Watch* watch) {
  return watch == nullptr ? "" : growth_text(watch->history(), watch->units());
}

void Watch::take(std::span<const float> slot) {
  const size_t stride = units_.size() * kNumbers;
  for (size_t u = 0; u < units_.size(); ++u) {
    double grad = 0, weight = 0;
    UnitNorms& norms = units_[u].norms = {};
    for (size_t at = u * kNumbers; at < slot.size(); at += stride) {
      grad += double{slot[at]} * slot[at];
      weight += double{slot[at + 2]} * slot[at + 2];
      norms.grad_max = std::max(norms.grad_max, slot[at + 1]);
      norms.weight_max = std::max(norms.weight_max, slot[at + 3]);
    }
    norms.grad_norm = static_cast<float>(std::sqrt(grad));
    norms.weight_norm = static_cast<float>(std::sqrt(weight));
  }
  history_.add(step_, units_);
}

}  // namespace ofsdp::runtime
