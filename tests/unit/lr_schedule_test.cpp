#include "runtime/engine/lr_schedule.h"

#include <gtest/gtest.h>

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

// shared/cases/bert_cls: Transformers' get_linear_schedule_with_warmup.
TEST(LrSchedule, LinearAsRecorded) {
  expect_rates(schedule(ScheduleKind::kLinear, 0.003, 4, 24),
               {0.0, 0.00075, 0.0015, 0.00225, 0.003, 0.00285, 0.0027, 0.00255, 0.0024});
  EXPECT_NEAR(learning_rate(schedule(ScheduleKind::kLinear, 0.003, 4, 24), 23, 0), 0.00015, 1e-15);
}

// shared/cases/gpt2_tiny.
TEST(LrSchedule, CosineAsRecorded) {
  LrSchedule cosine = schedule(ScheduleKind::kCosine, 0.003, 3, 24);
  cosine.options.min_lr_ratio = 0.1;
  expect_rates(cosine, {0.001, 0.002, 0.003, 0.003, 0.0029849216154039233, 0.0029400232878112895,
                        0.0028663079716682656, 0.0027654223453265933, 0.0026396200269702655,
                        0.0024917112325092907, 0.002325, 0.002143210382894633});
}

// shared/cases/mlp counts steps, shared/cases/mnist_cnn epochs of ten steps.
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

TEST(LrSchedule, TakesTheTotalOfTheRunUnlessAnotherIsSaid) {
  Options options;
  options.optimizer.lr = 0.25;
  EXPECT_EQ(make_lr_schedule(options, 70).total_steps, 70);
  options.schedule.total_steps = 50;
  EXPECT_EQ(make_lr_schedule(options, 70).total_steps, 50);
  EXPECT_EQ(make_lr_schedule(options, 70).base_lr, 0.25);
}

}  // namespace lr_schedule_test
}  // namespace ofsdp
