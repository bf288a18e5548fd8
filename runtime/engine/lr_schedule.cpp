#include "runtime/engine/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ofsdp::runtime {
namespace {

bool rises_from_zero(ScheduleKind kind) {
  return kind == ScheduleKind::kLinear || kind == ScheduleKind::kInverseSqrt;
}

double warmup_factor(const ScheduleOptions& options, int64_t step) {
  const int64_t numerator = rises_from_zero(options.kind) ? step : step + 1;
  return static_cast<double>(numerator) / static_cast<double>(options.warmup_steps);
}

// Returns gamma to the power that k epochs or steps give.
int64_t changes(const ScheduleOptions& options, int64_t k) {
  if (options.kind == ScheduleKind::kExponential) return k;
  if (options.kind == ScheduleKind::kStep) return k / options.step_size;
  return std::ranges::count_if(options.milestones, [k](int64_t at) { return at <= k; });
}

double staircase(const ScheduleOptions& options, int64_t step, int64_t epoch) {
  const int64_t k = options.unit == StepUnit::kEpoch ? epoch : step - options.warmup_steps;
  return std::pow(options.gamma, static_cast<double>(changes(options, k)));
}

double inverse_sqrt(const ScheduleOptions& options, int64_t step) {
  constexpr int64_t kScaleWithoutWarmup = 10000;
  const int64_t scale = options.warmup_steps > 0 ? options.warmup_steps : kScaleWithoutWarmup;
  const auto passed = static_cast<double>(step - options.warmup_steps + scale);
  return 1 / std::sqrt(passed / static_cast<double>(scale));
}

double warmup_stable_decay(const LrSchedule& schedule, int64_t step) {
  const int64_t total = schedule.total_steps;
  const int64_t span = schedule.options.decay_steps.value_or(std::max<int64_t>(1, total / 10));
  const int64_t passed = std::clamp<int64_t>(step - (total - span), 0, span);
  const double share = static_cast<double>(passed) / static_cast<double>(span);
  return 1 - (1 - schedule.options.min_lr_ratio) * share;
}

// From 1 at p = 0 to 0 at p = 1.
double half_wave(double p) { return (1 + std::cos(std::numbers::pi * p)) / 2; }

double cosine_restarts(const ScheduleOptions& options, int64_t step) {
  auto cycle = static_cast<double>(*options.restart_steps);
  auto at = static_cast<double>(step - options.warmup_steps);
  if (options.restart_mult == 1) at = std::fmod(at, cycle);
  while (at >= cycle) {
    at -= cycle;
    cycle *= static_cast<double>(options.restart_mult);
  }
  return half_wave(at / cycle);
}

// From 1 / div-factor to 1 and on to 1 / (div-factor final-div-factor).
double one_cycle(const LrSchedule& schedule, int64_t step) {
  const ScheduleOptions& options = schedule.options;
  const double first = 1 / options.div_factor, last = first / options.final_div_factor;
  const auto end = static_cast<double>(schedule.total_steps - 1);
  const double top = options.pct_start * static_cast<double>(schedule.total_steps) - 1;
  const double at = std::min(static_cast<double>(step), end);
  const auto between = [](double from, double to, double p) {
    return to + (from - to) * half_wave(p);
  };
  if (at <= top) return between(first, 1, top > 0 ? at / top : 1);
  return between(1, last, (at - top) / (end - top));
}

double progress(const LrSchedule& schedule, int64_t step) {
  const int64_t warmup = schedule.options.warmup_steps;
  const int64_t span = schedule.total_steps - warmup;
  if (span <= 0) return 1;
  return std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(span));
}

// A line, like half_wave.
double decay(const ScheduleOptions& options, double p) {
  switch (options.kind) {
    case ScheduleKind::kLinear:
      return 1 - p;
    case ScheduleKind::kCosine:
      return half_wave(p);
    default:
      return std::pow(1 - p, options.power);
  }
}

}  // namespace

LrSchedule make_lr_schedule(const ScheduleOptions& options, double base_lr, int64_t steps_of_run) {
  return {options, base_lr, options.total_steps.value_or(steps_of_run)};
}

double rate_factor(const LrSchedule& schedule, int64_t step, int64_t epoch) {
  const ScheduleOptions& options = schedule.options;
  if (step < options.warmup_steps) return warmup_factor(options, step);
  const double least = options.min_lr_ratio;
  switch (options.kind) {
    case ScheduleKind::kConstant:
      return 1;
    case ScheduleKind::kStep:
    case ScheduleKind::kMultistep:
    case ScheduleKind::kExponential:
      return staircase(options, step, epoch);
    case ScheduleKind::kInverseSqrt:
      return inverse_sqrt(options, step);
    case ScheduleKind::kWsd:
      return warmup_stable_decay(schedule, step);
    case ScheduleKind::kOneCycle:
      return one_cycle(schedule, step);
    case ScheduleKind::kCosineRestarts:
      return least + (1 - least) * cosine_restarts(options, step);
    default:
      return least + (1 - least) * decay(options, progress(schedule, step));
  }
}

double learning_rate(const LrSchedule& schedule, int64_t step, int64_t epoch) {
  return schedule.base_lr * rate_factor(schedule, step, epoch);
}

}  // namespace ofsdp::runtime
