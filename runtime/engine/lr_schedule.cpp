#include "runtime/engine/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ofsdp::runtime {
namespace {

double warmup_factor(const ScheduleOptions& options, int64_t step) {
  const int64_t numerator = options.kind == ScheduleKind::kLinear ? step : step + 1;
  return static_cast<double>(numerator) / static_cast<double>(options.warmup_steps);
}

double staircase(const ScheduleOptions& options, int64_t step, int64_t epoch) {
  const int64_t k = options.unit == StepUnit::kEpoch ? epoch : step - options.warmup_steps;
  return std::pow(options.gamma, static_cast<double>(k / options.step_size));
}

double progress(const LrSchedule& schedule, int64_t step) {
  const int64_t warmup = schedule.options.warmup_steps;
  const int64_t span = schedule.total_steps - warmup;
  if (span <= 0) return 1;
  return std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(span));
}

// From 1 at p = 0 to 0 at p = 1.
double decay(const ScheduleOptions& options, double p) {
  switch (options.kind) {
    case ScheduleKind::kLinear:
      return 1 - p;
    case ScheduleKind::kCosine:
      return (1 + std::cos(std::numbers::pi * p)) / 2;
    default:
      return std::pow(1 - p, options.power);
  }
}

double factor(const LrSchedule& schedule, int64_t step, int64_t epoch) {
  const ScheduleOptions& options = schedule.options;
  if (step < options.warmup_steps) return warmup_factor(options, step);
  if (options.kind == ScheduleKind::kConstant) return 1;
  if (options.kind == ScheduleKind::kStep) return staircase(options, step, epoch);
  const double least = options.min_lr_ratio;
  return least + (1 - least) * decay(options, progress(schedule, step));
}

}  // namespace

LrSchedule make_lr_schedule(const Options& options, int64_t steps_of_run) {
  return {options.schedule, options.optimizer.lr,
          options.schedule.total_steps.value_or(steps_of_run)};
}

double learning_rate(const LrSchedule& schedule, int64_t step, int64_t epoch) {
  return schedule.base_lr * factor(schedule, step, epoch);
}

}  // namespace ofsdp::runtime
