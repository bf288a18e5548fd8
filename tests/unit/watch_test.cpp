// The norms of units: the sums over ranks against plain loops, the history, and the step from which
// norms grow.
#include "runtime/engine/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/optimizers/squares.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace watch_test {

Plan plan_of(const std::vector<std::string>& names, int world) {
  Plan plan;
  plan.world = world;
  for (size_t u = 0; u < names.size(); ++u) {
    Unit& unit = plan.units.emplace_back();
    unit.id = static_cast<int>(u);
    unit.name = names[u];
    unit.params.emplace_back();
  }
  return plan;
}

// A watch with memory for the history.
struct Watched {
  Watched(const Plan& plan, int64_t interval)
      : memory(NormHistory::bytes(watched_units(plan).size()) / sizeof(int64_t) + 1),
        watch(plan, interval, std::as_writable_bytes(std::span(memory))) {}

  std::vector<int64_t> memory;
  Watch watch;
};

TEST(Watch, RanksTogetherHaveTheNormsOfTheWhole) {
  constexpr int kWorld = 3;
  constexpr size_t kEach = 53;  // no multiple of the lanes
  constexpr double kScale = 4;
  Plan plan = plan_of({"first", "frozen", "last"}, kWorld);
  plan.units[1].params.clear();
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> slot(kWorld * 2 * Watch::kNumbers), sum(slot.size(), 0.0f);
  double grad_squares[3] = {}, weight_squares[3] = {}, grad_max[3] = {}, weight_max[3] = {};
  Watched last(plan, 1);
  for (int rank = 0; rank < kWorld; ++rank) {
    Watched mine(plan, 1);
    mine.watch.begin_update(1);
    for (const int unit : {0, 2}) {
      std::vector<float> gradient(kEach), weights(kEach);
      for (size_t i = 0; i < kEach; ++i) {
        gradient[i] = normal(random);
        weights[i] = normal(random);
        grad_squares[unit] += std::pow(gradient[i] / kScale, 2);
        weight_squares[unit] += std::pow(weights[i], 2);
        grad_max[unit] = std::max(grad_max[unit], std::abs(gradient[i]) / kScale);
        weight_max[unit] = std::max<double>(weight_max[unit], std::abs(weights[i]));
      }
      mine.watch.add(unit, gradient, sum_of_squares(gradient), weights.data());
    }
    mine.watch.write(slot, rank, kScale);
    for (size_t i = 0; i < slot.size(); ++i) sum[i] += slot[i];
  }
  last.watch.begin_update(1);
  last.watch.take(sum);
  ASSERT_EQ(last.watch.units().size(), 2u);
  for (const WatchedUnit& unit : last.watch.units()) {
    EXPECT_NEAR(unit.norms.grad_norm, std::sqrt(grad_squares[unit.unit]), 1e-6);
    EXPECT_NEAR(unit.norms.weight_norm, std::sqrt(weight_squares[unit.unit]), 1e-5);
    EXPECT_FLOAT_EQ(unit.norms.grad_max, static_cast<float>(grad_max[unit.unit]));
    EXPECT_FLOAT_EQ(unit.norms.weight_max, static_cast<float>(weight_max[unit.unit]));
  }
  EXPECT_EQ(last.watch.units()[1].name, "last");
}

TEST(Watch, TakesEveryNthUpdate) {
  Watched every_third(plan_of({"a"}, 1), 3);
  std::vector<int64_t> due;
  for (int64_t step = 1; step < 10; ++step) {
    every_third.watch.begin_update(step);
    if (every_third.watch.due()) due.push_back(step);
  }
  EXPECT_THAT(due, testing::ElementsAre(3, 6, 9));
}

TEST(Watch, NoTwoUnitsHaveTheSameName) {
  const auto units = watched_units(plan_of({"block", "block", "root"}, 1));
  EXPECT_EQ(units[0].name, "block (unit 0)");
  EXPECT_EQ(units[1].name, "block (unit 1)");
  EXPECT_EQ(units[2].name, "root");
}

// A history of one unit: the gradient's norms, an update each, and weights with norm 1.
struct History {
  explicit History(const std::vector<float>& norms)
      : memory(NormHistory::bytes(1) / sizeof(int64_t) + 1),
        history(1, std::as_writable_bytes(std::span(memory))) {
    for (size_t i = 0; i < norms.size(); ++i) {
      units[0].norms = {.grad_norm = norms[i], .weight_norm = 1};
      history.add(static_cast<int64_t>(i) + 1, units);
    }
  }

  // The step from which the gradient grows; 0: it does not.
  int64_t step() const {
    const auto list = growths(history, 1);
    return list.empty() ? 0 : list[0].step;
  }

  std::vector<int64_t> memory;
  std::vector<WatchedUnit> units{{4, "block", {}}};
  NormHistory history;
};

TEST(NormHistory, KeepsTheLatest) {
  std::vector<float> norms(NormHistory::kKept + 10);
  for (size_t i = 0; i < norms.size(); ++i) norms[i] = static_cast<float>(i + 1);
  const History made(norms);
  ASSERT_EQ(made.history.size(), NormHistory::kKept);
  for (size_t i = 0; i < NormHistory::kKept; ++i) {
    EXPECT_EQ(made.history.step(i), static_cast<int64_t>(i) + 11);
    EXPECT_EQ(made.history.norms(i, 0).grad_norm, static_cast<float>(i + 11));
  }
}

TEST(Growth, BeginsWhereTheLastRowOfLargeNormsDoes) {
  EXPECT_EQ(History({1, 1.2f, 0.9f, 1, 1.1f, 5, 30, 900}).step(), 6);
  EXPECT_EQ(History({1, 50, 1, 1, 1, 1, 1, 6}).step(), 8) << "one alone before is over";
  EXPECT_EQ(History({1, 50, 1, 1, 1, 2, 1, 3}).step(), 0);
  EXPECT_EQ(History({1, 1, 1, HUGE_VALF}).step(), 4);
  EXPECT_EQ(History({1, 1, 8, std::nanf("")}).step(), 3);
  EXPECT_EQ(History({3}).step(), 0);
  EXPECT_EQ(History({}).step(), 0);
  EXPECT_EQ(History({0, 0, 0, 7}).step(), 0) << "a unit that was still has no size to grow from";
}

TEST(Growth, ASlowRiseIsFoundLateAndANewLevelIsNone) {
  std::vector<float> rise(20, 1.0f), level(20, 1.0f);
  for (int i = 0; i < 20; ++i) {
    rise.push_back(rise.back() * 1.5f);
    level.push_back(20);
  }
  EXPECT_EQ(History(rise).step(), 24);  // 1.5^3 < 4 < 1.5^4
  EXPECT_EQ(History(level).step(), 0);
}

TEST(Growth, IsSaidInLines) {
  const History grown({1, 1, 1, 5, 600});
  EXPECT_EQ(growth_text(grown.history, grown.units),
            "norms grew from step 4 on (to step 5, the last watched):\n"
            "  gradient of unit 4 (block): 1 before, 5 at step 4, 600 at step 5");
  const History still({1, 1, 1});
  EXPECT_EQ(growth_text(still.history, still.units),
            "norms did not grow: none of step 3, the last watched, is more than 4 times its median "
            "before");
  EXPECT_EQ(growth_text(History({1}).history, still.units), "norms: only step 1 was watched");
  EXPECT_EQ(growth_text(History({}).history, still.units), "");
}

}  // namespace watch_test
}  // namespace ofsdp
