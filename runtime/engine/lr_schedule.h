// The learning rate, a pure function of update and epoch.
//
// s counts updates from 0, W = warm-up steps, T = total steps, m = min-lr-ratio, lr the base rate.
// While s < W: `linear` gives lr s/W (Transformers' get_linear_schedule_with_warmup: the first rate
// is 0), and so does `inverse_sqrt`; every other schedule gives lr (s+1)/W. Then, with
// p = min(1, (s-W)/(T-W)), or 1 if T <= W, and k = s-W, or the epoch from 0 (which counts
// during warm-up too):
//   constant         lr
//   step             lr gamma^floor(k / step-size)
//   multistep        lr gamma^(number of milestones <= k)
//   exponential      lr gamma^k
//   linear           lr (m + (1-m)(1-p))
//   cosine           lr (m + (1-m)(1 + cos(pi p)) / 2)
//   polynomial       lr (m + (1-m)(1-p)^power)
//   inverse_sqrt     lr / sqrt((s+V-W) / V), V = W, or 10000 without warm-up
//   wsd              lr until T-D, then lr (1 - (1-m)(s-(T-D))/D), after T lr m;
//                    D = decay-steps, by default max(1, floor(T/10))
//   cosine_restarts  lr (m + (1-m)(1 + cos(pi c/R)) / 2), c updates into a cycle of R updates: the
//                    first has restart-steps, each next one restart-mult times as many
//                    (torch.optim.lr_scheduler.CosineAnnealingWarmRestarts)
//   onecycle         torch.optim.lr_scheduler.OneCycleLR, max_lr = lr, of T updates, cosine; beyond
//                    them the last rate stays
// All in double; the optimizer rounds once. Options are checked where they are read.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/base/names.h"

namespace ofsdp::runtime {

enum class ScheduleKind {
  kConstant,
  kStep,
  kLinear,
  kCosine,
  kPolynomial,
  kMultistep,
  kExponential,
  kInverseSqrt,
  kWsd,
  kCosineRestarts,
  kOneCycle
};
OFSDP_ENUM_NAMES(ScheduleKind, {kConstant, "constant"}, {kStep, "step"}, {kLinear, "linear"},
                 {kCosine, "cosine"}, {kPolynomial, "polynomial"}, {kMultistep, "multistep"},
                 {kExponential, "exponential"}, {kInverseSqrt, "inverse_sqrt"}, {kWsd, "wsd"},
                 {kCosineRestarts, "cosine_restarts"}, {kOneCycle, "onecycle"})

// The unit that schedules and the intervals of evaluations and checkpoints count.
enum class StepUnit { kEpoch, kStep };
OFSDP_ENUM_NAMES(StepUnit, {kEpoch, "epoch"}, {kStep, "step"})

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warmup_steps = 0;
  std::optional<int64_t> total_steps;  // the run's
  double min_lr_ratio = 0;
  double power = 1;
  int64_t step_size = 1;
  double gamma = 0.1;
  StepUnit unit = StepUnit::kEpoch;
  std::vector<int64_t> milestones = {};
  std::optional<int64_t> decay_steps = {};    // auto: a tenth of the total
  std::optional<int64_t> restart_steps = {};  // none, which cosine_restarts refuses
  int64_t restart_mult = 1;
  double pct_start = 0.3;
  double div_factor = 25;
  double final_div_factor = 1e4;
};

struct LrSchedule {
  ScheduleOptions options;
  double base_lr = 0;
  int64_t total_steps = 0;  // T
};

// `steps_of_run` is the number of updates of the whole run, T unless --total-steps says another.
LrSchedule make_lr_schedule(const ScheduleOptions& options, double base_lr, int64_t steps_of_run);

// Returns the learning rate over the base rate.
double rate_factor(const LrSchedule& schedule, int64_t step, int64_t epoch);

double learning_rate(const LrSchedule& schedule, int64_t step, int64_t epoch);

}  // namespace ofsdp::runtime
