// Graphs in double, and derivatives by differences: importer/graph/reference_run.h.
#include "importer/graph/reference_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <thread>

#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace reference_run_test {

using ::testing::HasSubstr;

class ReferenceRunTest : public ::testing::Test {
 protected:
  // loss = mean(op(w, more ..) * x) over three elements.
  ValueId mean_of(const std::string& op, const Attributes& attributes = {},
                  const std::vector<ValueId>& more = {}) {
    w_ = maker_.parameter("w", {3});
    x_ = maker_.input("x", {DType::kFloat32, {3}});
    std::vector<ValueId> inputs{w_};
    inputs.insert(inputs.end(), more.begin(), more.end());
    made_ = maker_.node(op, "op", inputs, attributes);
    const ValueId product = maker_.node("Mul", "mul", {made_, x_});
    const ValueId mean = maker_.node("ReduceMean", "mean", {product}, {{"keepdims", int64_t{0}}});
    maker_.graph.terms = {{mean}};
    return mean;
  }

  Slope slope_at(const std::vector<double>& w, const std::vector<double>& direction) {
    ReferenceRun run(maker_.graph, step_);
    run.set(w_, w);
    run.set(x_, {1, -2, 3});
    EXPECT_TRUE(run.run().ok());
    auto slope = run.slope({{w_, direction}});
    EXPECT_TRUE(slope.ok());
    return *slope;
  }

  const Registry registry_ = make_registry();
  testing::GraphMaker maker_{registry_};
  const StepContext step_;
  ValueId w_ = 0, x_ = 0, made_ = 0;
};

TEST_F(ReferenceRunTest, ComputesTheGraphInDouble) {
  mean_of("Exp");
  ReferenceRun run(maker_.graph, step_);
  run.set(w_, {0.1, 0.2, 0.3});
  run.set(x_, {1, -2, 3});
  ASSERT_TRUE(run.run().ok());
  const double expected = (std::exp(0.1) - 2 * std::exp(0.2) + 3 * std::exp(0.3)) / 3;
  EXPECT_NEAR(run.loss(), expected, 1e-15);
  EXPECT_NEAR(run.value(made_)[1], std::exp(0.2), 1e-15);
}

TEST_F(ReferenceRunTest, DifferentiatesToSevenDigits) {
  mean_of("Exp");
  const Slope slope = slope_at({0.1, -1.2, 2.3}, {1, 0.5, -2});
  const double expected = (std::exp(0.1) - std::exp(-1.2) - 6 * std::exp(2.3)) / 3;
  EXPECT_FALSE(slope.kink);
  EXPECT_NEAR(slope.value, expected, 1e-8 * std::abs(expected));
  EXPECT_LT(slope.error, 1e-7 * std::abs(expected));
}

TEST_F(ReferenceRunTest, FindsKinks) {
  mean_of("Relu");
  EXPECT_FALSE(slope_at({0.5, -0.5, 0.25}, {1, 1, 1}).kink);
  EXPECT_NEAR(slope_at({0.5, -0.5, 0.25}, {1, 1, 1}).value, 4.0 / 3, 1e-9);
  EXPECT_TRUE(slope_at({0.5, -0.5, 0}, {1, 1, 1}).kink);      // at the corner
  EXPECT_FALSE(slope_at({0.5, -0.5, 0}, {1, 1, 0}).kink);     // along it
  EXPECT_FALSE(slope_at({0.5, -0.5, 3e-5}, {1, 1, 1}).kink);  // near it: by a smaller width
}

TEST_F(ReferenceRunTest, RunsTheKernelOfAnOperatorWithoutReference) {
  mean_of("Tanh");
  OpDef op = registry_.get("Tanh");
  op.reference = nullptr;
  maker_.graph.nodes[0].op = &op;
  const Slope slope = slope_at({0.3, -0.7, 1.1}, {1, -1, 0.5});
  const auto part = [](double w) { return 1 - std::tanh(w) * std::tanh(w); };
  const double expected = (part(0.3) + 2 * part(-0.7) + 1.5 * part(1.1)) / 3;
  EXPECT_FALSE(slope.kink);
  EXPECT_NEAR(slope.value, expected, 1e-4 * std::abs(expected));
}

// Exporters write the largest int64 for "to the end"; as a double it is 2^63, too large for int64.
TEST_F(ReferenceRunTest, SlicesToTheLargestInt64) {
  const ValueId starts = maker_.ints({0}), axes = maker_.ints({0}), steps = maker_.ints({1});
  const ValueId ends = maker_.ints({std::numeric_limits<int64_t>::max()});
  mean_of("Slice", {}, {starts, ends, axes, steps});
  ReferenceRun run(maker_.graph, step_);
  run.set(w_, {0.5, 2, 4});
  run.set(x_, {1, -2, 3});
  ASSERT_TRUE(run.run().ok());
  EXPECT_EQ(run.value(made_).values, (std::vector<double>{0.5, 2, 4}));
  EXPECT_NEAR(run.loss(), 8.5 / 3, 1e-15);
}

// w / 0.5 is 0.68 and -1.8, rounded to 1 and -2, and 200, clipped to 127.
TEST_F(ReferenceRunTest, DifferentiatesRoundingToIntegersStraightThrough) {
  const std::vector<double> w{0.34, -0.9, 100};
  for (const bool learned : {false, true}) {
    maker_.graph = testing::GraphMaker(registry_).graph;
    const ValueId scale = maker_.parameter("scale", {1});
    mean_of("ofsdp.FakeQuantize", {{"learned", int64_t{learned}}}, {scale});
    ReferenceRun run(maker_.graph, step_);
    run.set(w_, w);
    run.set(x_, {1, -2, 3});
    run.set(scale, {0.5});
    ASSERT_TRUE(run.run().ok());
    EXPECT_EQ(run.value(made_).values, (std::vector<double>{0.5, -1, 63.5}));
    const auto along_w = run.slope({{w_, {1, 0.5, 7}}}), along_scale = run.slope({{scale, {1}}});
    ASSERT_TRUE(along_w.ok() && along_scale.ok());
    EXPECT_NEAR(along_w->value, (1 * 1 + -2 * 0.5) / 3, 1e-9);  // clipped: 0
    EXPECT_FALSE(along_w->kink);
    // LSQ: rounded minus exact in the range, the bound outside, over the root of 3 elements * 127
    const double steps = 1 * (1 - 0.68) - 2 * (-2 + 1.8) + 3 * 127;
    const double expected = learned ? steps / 3 / std::sqrt(3 * 127.0) : 0;
    EXPECT_NEAR(along_scale->value, expected, 1e-8);
  }
}

TEST_F(ReferenceRunTest, NamesTheNodeOfAValueThatNobodySet) {
  mean_of("Exp");
  ReferenceRun run(maker_.graph, step_);
  run.set(w_, {0.1, 0.2, 0.3});
  EXPECT_THAT(run.run().message(), HasSubstr("node 'mul' (Mul): 'x' has no value"));
}

TEST_F(ReferenceRunTest, StopsAtTheDeadline) {
  mean_of("Exp");
  ReferenceRun run(maker_.graph, step_);
  run.set(w_, {0.1, 0.2, 0.3});
  run.set(x_, {1, -2, 3});
  run.set_deadline(ReferenceRun::Clock::time_point::min());
  EXPECT_THAT(run.run().message(), HasSubstr("out of time"));
}

int slow_runs = 0;

std::vector<RefTensor> slow_reference(const ReferenceContext& c) {
  ++slow_runs;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return {c.inputs[0]};
}

// The mean of x Exp(w), run once; Exp takes 50 ms.
class SlowReferenceRunTest : public ReferenceRunTest {
 protected:
  void SetUp() override {
    mean_of("Exp");
    slow_ = registry_.get("Exp");
    slow_.reference = slow_reference;
    maker_.graph.nodes[0].op = &slow_;
    run_.emplace(maker_.graph, step_);
    run_->set(w_, {0.1, 0.2, 0.3});
    run_->set(x_, {1, -2, 3});
    ASSERT_TRUE(run_->run().ok());
  }

  OpDef slow_;
  std::optional<ReferenceRun> run_;
};

TEST_F(SlowReferenceRunTest, StartsNoNodeThatWouldEndAfterTheDeadline) {
  const int before = slow_runs;
  run_->set_deadline(ReferenceRun::Clock::now() + std::chrono::milliseconds(40));
  const auto slope = run_->slope({{w_, {1, 1, 1}}});
  ASSERT_FALSE(slope.ok());
  EXPECT_THAT(slope.error().message(), HasSubstr("out of time"));
  EXPECT_EQ(slow_runs, before);
}

// Only nodes that depend on a value count: here the slow one for w and the others for x.
TEST_F(SlowReferenceRunTest, TellsHowLongAPassBehindAValueLasts) {
  EXPECT_GE(run_->pass_behind(w_) - run_->pass_behind(x_), std::chrono::milliseconds(50));
  EXPECT_EQ(run_->pass_behind(maker_.graph.terms[0].value), ReferenceRun::Clock::duration{});
}

}  // namespace reference_run_test
}  // namespace ofsdp
