// The learning rate of every update, as a pure function of the update and the epoch.
//
// s counts updates from 0, W = warm-up steps, T = total steps, m = min-lr-ratio, lr the base rate.
// While s < W: `linear` gives lr s/W (Transformers' get_linear_schedule_with_warmup: the first rate
// is 0), every other schedule lr (s+1)/W. Then, with p = min(1, (s-W)/(T-W)), and 1 where T <= W:
//   constant    lr
//   step        lr gamma^floor(k / step-size), k = s-W, or the epoch from 0 (which counts during
//               warm-up too)
//   linear      lr (m + (1-m)(1-p))
//   cosine      lr (m + (1-m)(1 + cos(pi p)) / 2)
//   polynomial  lr (m + (1-m)(1-p)^power)
// All in double; the optimizer rounds once.
//
// No errors: the ranges were checked when the options were
// read.
#pragma once

#include <cstdint>

#include "runtime/options.h"

namespace ofsdp::runtime {

struct LrSchedule {
  ScheduleOptions options;
  double base_lr = 0;
  int64_t total_steps = 0;  // T
};

// `steps_of_run` is the number of updates of the whole run, T unless --total-steps says another.
LrSchedule make_lr_schedule(const Options& options, int64_t steps_of_run);

double learning_rate(const LrSchedule& schedule, int64_t step, int64_t epoch);

}  // namespace ofsdp::runtime
