#include "runtime/engine/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/namespaces.h"

namespace ofsdp {
namespace lr_schedule_test {

LrSchedule schedule(ScheduleKind kind, double lr, int64_t warmup, int64_t total) {
  LrSchedule result;
  result.options.kind = kind;
  result.options.warmup_steps = warmup;
  result.base_lr = lr;
  result.total_steps = total;
  return result;
}

void expect_rates(const LrSchedule& schedule, const std::vector<double>& rates) {
  for (size_t s = 0; s < rates.size(); ++s) {
    EXPECT_NEAR(learning_rate(schedule, static_cast<int64_t>(s), 0), rates[s], 1e-15) << "s=" << s;
  }
}

// Recorded from Transformers' get_linear_schedule_with_warmup.
TEST(LrSchedule, LinearAsRecorded) {
  expect_rates(schedule(ScheduleKind::kLinear, 0.003, 4, 24),
               {0.0, 0.00075, 0.0015, 0.00225, 0.003, 0.00285, 0.0027, 0.00255, 0.0024});
  EXPECT_NEAR(learning_rate(schedule(ScheduleKind::kLinear, 0.003, 4, 24), 23, 0), 0.00015, 1e-15);
}

// Recorded from a run of GPT-2.
TEST(LrSchedule, CosineAsRecorded) {
  LrSchedule cosine = schedule(ScheduleKind::kCosine, 0.003, 3, 24);
  cosine.options.min_lr_ratio = 0.1;
  expect_rates(cosine, {0.001, 0.002, 0.003, 0.003, 0.0029849216154039233, 0.0029400232878112895,
                        0.0028663079716682656, 0.0027654223453265933, 0.0026396200269702655,
                        0.0024917112325092907, 0.002325, 0.002143210382894633});
}

// The first recorded run counts steps, the second counts epochs with ten steps each.
TEST(LrSchedule, StepAsRecorded) {
  LrSchedule mlp = schedule(ScheduleKind::kStep, 0.05, 0, 32);
  mlp.options.unit = StepUnit::kStep;
  mlp.options.step_size = 16;
  mlp.options.gamma = 0.5;
  EXPECT_EQ(learning_rate(mlp, 15, 3), 0.05);
  EXPECT_EQ(learning_rate(mlp, 16, 0), 0.025);

  LrSchedule mnist = schedule(ScheduleKind::kStep, 1.0, 0, 30);
  mnist.options.gamma = 0.7;
  EXPECT_EQ(learning_rate(mnist, 9, 0), 1.0);
  EXPECT_EQ(learning_rate(mnist, 10, 1), 0.7);
  EXPECT_NEAR(learning_rate(mnist, 20, 2), 0.49, 1e-15);
}

TEST(LrSchedule, StepCountsStepsAfterWarmupButEpochsFromZero) {
  LrSchedule step = schedule(ScheduleKind::kStep, 1.0, 4, 100);
  step.options.gamma = 0.5;
  step.options.step_size = 2;
  EXPECT_EQ(learning_rate(step, 0, 6), 0.25);  // warm-up: (s+1)/W, no staircase yet
  EXPECT_EQ(learning_rate(step, 3, 6), 1.0);
  EXPECT_EQ(learning_rate(step, 4, 2), 0.5);
  step.options.unit = StepUnit::kStep;
  EXPECT_EQ(learning_rate(step, 5, 9), 1.0);   // k = 1
  EXPECT_EQ(learning_rate(step, 6, 9), 0.5);   // k = 2
  EXPECT_EQ(learning_rate(step, 8, 9), 0.25);  // k = 4
}

TEST(LrSchedule, ConstantWarmsUp) {
  expect_rates(schedule(ScheduleKind::kConstant, 2.0, 4, 8), {0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0});
}

TEST(LrSchedule, PolynomialByHand) {
  LrSchedule polynomial = schedule(ScheduleKind::kPolynomial, 1.0, 0, 4);
  polynomial.options.power = 2;
  polynomial.options.min_lr_ratio = 0.2;
  // 0.2 + 0.8 (1 - s/4)^2
  expect_rates(polynomial, {1.0, 0.65, 0.4, 0.25, 0.2, 0.2});
}

TEST(LrSchedule, StaysAtTheEndBeyondTheTotal) {
  EXPECT_EQ(learning_rate(schedule(ScheduleKind::kLinear, 1.0, 2, 6), 99, 0), 0.0);
  EXPECT_NEAR(learning_rate(schedule(ScheduleKind::kCosine, 1.0, 2, 6), 99, 0), 0.0, 1e-16);
}

TEST(LrSchedule, TotalInsideTheWarmupEndsAtOnce) {
  const LrSchedule linear = schedule(ScheduleKind::kLinear, 1.0, 4, 4);
  EXPECT_EQ(learning_rate(linear, 3, 0), 0.75);
  EXPECT_EQ(learning_rate(linear, 4, 0), 0.0);
}

// torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(3, 2, eta_min=0.1)
TEST(LrSchedule, CosineRestartsAsRecorded) {
  LrSchedule restarts = schedule(ScheduleKind::kCosineRestarts, 1.0, 2, 8);
  restarts.options.min_lr_ratio = 0.1;
  restarts.options.restart_steps = 3;
  restarts.options.restart_mult = 2;
  expect_rates(restarts, {0.5, 1.0, 1.0, 0.775, 0.325, 1.0, 0.9397114317029974, 0.775, 0.55, 0.325,
                          0.16028856829700258, 1.0, 0.9846666218300807});
  restarts.options.restart_mult = 1;
  EXPECT_NEAR(learning_rate(restarts, 2 + 3000000001, 0), 0.775, 1e-15);
}

// torch.optim.lr_scheduler.OneCycleLR(0.3, total_steps=11)
TEST(LrSchedule, OneCycleAsRecorded) {
  const LrSchedule cycle = schedule(ScheduleKind::kOneCycle, 0.3, 0, 11);
  expect_rates(cycle, {0.012, 0.12670233412042076, 0.28807842741678524, 0.29392397034639045,
                       0.26534271743058907, 0.2178261147892585, 0.15917481242627995,
                       0.09901740869618848, 0.04722975383985236, 0.012313662961887257});
  EXPECT_NEAR(learning_rate(cycle, 10, 0), 1.2e-6, 1e-15);
  EXPECT_NEAR(learning_rate(cycle, 99, 0), 1.2e-6, 1e-15);
}

TEST(LrSchedule, PowersOfGammaByHand) {
  LrSchedule multistep = schedule(ScheduleKind::kMultistep, 1.0, 2, 9);
  multistep.options.unit = StepUnit::kStep;
  multistep.options.gamma = 0.5;
  multistep.options.milestones = {3, 1, 3};
  expect_rates(multistep, {0.5, 1.0, 1.0, 0.5, 0.5, 0.125, 0.125});
  LrSchedule exponential = multistep;
  exponential.options.kind = ScheduleKind::kExponential;
  expect_rates(exponential, {0.5, 1.0, 1.0, 0.5, 0.25, 0.125});
  exponential.options.unit = StepUnit::kEpoch;
  EXPECT_EQ(learning_rate(exponential, 50, 2), 0.25);
}

TEST(LrSchedule, InverseSqrtByHand) {
  expect_rates(schedule(ScheduleKind::kInverseSqrt, 1.0, 4, 9),
               {0, 0.25, 0.5, 0.75, 1.0, 2 / std::sqrt(5.0)});
  const LrSchedule cold = schedule(ScheduleKind::kInverseSqrt, 1.0, 0, 9);
  EXPECT_EQ(learning_rate(cold, 0, 0), 1.0);
  EXPECT_EQ(learning_rate(cold, 30000, 0), 0.5);
}

TEST(LrSchedule, WarmupStableDecayByHand) {
  LrSchedule wsd = schedule(ScheduleKind::kWsd, 1.0, 2, 10);
  wsd.options.min_lr_ratio = 0.5;
  wsd.options.decay_steps = 4;
  expect_rates(wsd, {0.5, 1, 1, 1, 1, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.5});
  wsd.options.decay_steps.reset();  // one step in ten
  expect_rates(wsd, {0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0.5});
}

TEST(LrSchedule, TakesTheTotalOfTheRunUnlessAnotherIsSaid) {
  ScheduleOptions options;
  EXPECT_EQ(make_lr_schedule(options, 0.25, 70).total_steps, 70);
  options.total_steps = 50;
  EXPECT_EQ(make_lr_schedule(options, 0.25, 70).total_steps, 50);
  EXPECT_EQ(make_lr_schedule(options, 0.25, 70).base_lr, 0.25);
}

}  // namespace lr_schedule_test
}  // namespace ofsdp
