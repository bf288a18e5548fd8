// The learning rate of each update (--lr-schedule). It depends only on the options, the update's
// number and the epoch, so checkpoints need not contain it.
//
//   s   the update's number, from 0          T   total updates
//   W   warm-up updates                      m   --min-lr-ratio
//   lr  the base rate (--lr)                 p   min(1, (s-W) / (T-W)), or 1 if T <= W
//   k   s-W, or, if the schedule counts epochs, the epoch from 0, warm-up included
//
// During warm-up (s < W) `linear` and `inverse_sqrt` give lr s/W, as Transformers'
// get_linear_schedule_with_warmup (the first rate is 0), and every other schedule lr (s+1)/W. After
// it:
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
//   cosine_restarts  lr (m + (1-m)(1 + cos(pi c/R)) / 2), c updates into a cycle of R updates. The
//                    first R is restart-steps, and each R is restart-mult times the one before
//                    (torch.optim.lr_scheduler.CosineAnnealingWarmRestarts)
//   onecycle         torch.optim.lr_scheduler.OneCycleLR with max_lr = lr and total_steps = T,
//                    cosine annealing; after T updates the last rate
//
// Computed in double; the optimizer rounds once. The option parser has checked the options.
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

// The unit in which a schedule, or the interval between evaluations or checkpoints, is given.
enum class StepUnit { kEpoch, kStep };
OFSDP_ENUM_NAMES(StepUnit, {kEpoch, "epoch"}, {kStep, "step"})

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warmup_steps = 0;
  std::optional<int64_t> total_steps;  // T; none: the updates of the run
  double min_lr_ratio = 0;
  double power = 1;
  int64_t step_size = 1;
  double gamma = 0.1;
  StepUnit unit = StepUnit::kEpoch;
  std::vector<int64_t> milestones = {};
  std::optional<int64_t> decay_steps = {};    // D; none: a tenth of T
  std::optional<int64_t> restart_steps = {};  // cosine_restarts needs it
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

// `steps_of_run`: the updates of the whole run, which is T unless --total-steps is given.
LrSchedule make_lr_schedule(const ScheduleOptions& options, double base_lr, int64_t steps_of_run);

// Returns the learning rate divided by the base rate. `step`: s; `epoch`: from 0.
double rate_factor(const LrSchedule& schedule, int64_t step, int64_t epoch);

double learning_rate(const LrSchedule& schedule, int64_t step, int64_t epoch);

}  // namespace ofsdp::runtime
