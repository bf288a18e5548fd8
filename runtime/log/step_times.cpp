#include "runtime/log/step_times.h"

#include <algorithm>
#include <limits>

namespace ofsdp::runtime {

void StepTimes::add(double step_ms) {
  const int64_t index = count_++;
  if (index < kWarmup) {
    first_[index] = step_ms;
    return;
  }
  if (kept_.size() == most_kept_) {
    for (size_t i = 0; i < most_kept_ / 2; ++i) kept_[i] = kept_[2 * i];
    kept_.resize(most_kept_ / 2);
    stride_ *= 2;
  }
  if ((index - kWarmup) % stride_ == 0) kept_.push_back(static_cast<float>(step_ms));
}

double StepTimes::median() const {
  std::vector<double> times(kept_.begin(), kept_.end());
  if (count_ <= 2 * kWarmup) times.insert(times.end(), first_, first_ + std::min(count_, kWarmup));
  if (times.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(times.begin(), times.end());
  const size_t middle = times.size() / 2;
  return times.size() % 2 == 1 ? times[middle] : (times[middle - 1] + times[middle]) / 2;
}

}  // namespace ofsdp::runtime
