// Two streams: what touches the same bytes is ordered as in the schedule, by a search through the
// events that knows nothing of how they were placed; what does not may run side by side.
#include "runtime/stream_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace ofsdp {
namespace {

std::byte memory[64];

StepAccess step(bool communication, int begin, int bytes, bool writes) {
  return {communication, {{memory + begin, static_cast<size_t>(bytes), writes}}};
}

// before[a][b]: a has ended when b begins.
std::vector<std::vector<bool>> order_of(const StreamPlan& plan) {
  const size_t n = plan.steps.size();
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n, false));
  std::vector<int> recorder(static_cast<size_t>(plan.events), -1);
  int last[2] = {-1, -1};
  const auto after = [&](int a, size_t b) {
    if (a < 0) return;
    before[static_cast<size_t>(a)][b] = true;
    for (size_t i = 0; i < n; ++i) {
      if (before[i][static_cast<size_t>(a)]) before[i][b] = true;
    }
  };
  for (size_t s = 0; s < n; ++s) {
    const StreamStep& step = plan.steps[s];
    const int stream = step.communication ? 1 : 0;
    after(last[stream], s);
    if (step.forks >= 0) after(last[0], s);
    if (step.waits >= 0) after(recorder[static_cast<size_t>(step.waits)], s);
    if (step.records >= 0) recorder[static_cast<size_t>(step.records)] = static_cast<int>(s);
    last[stream] = static_cast<int>(s);
  }
  return before;
}

TEST(StreamPlan, ConflictingStepsAreOrderedOthersAreNot) {
  std::mt19937 random(3);
  int beside = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<StepAccess> steps;
    for (int s = 0; s < 30; ++s) {
      steps.push_back(step(random() % 3 == 0, static_cast<int>(random() % 56),
                           1 + static_cast<int>(random() % 8), random() % 2 == 0));
    }
    const StreamPlan plan = plan_streams(steps);
    const auto before = order_of(plan);
    for (size_t a = 0; a < steps.size(); ++a) {
      for (size_t b = a + 1; b < steps.size(); ++b) {
        const MemoryAccess &x = steps[a].touches[0], &y = steps[b].touches[0];
        const bool same = x.data < y.data + y.bytes && y.data < x.data + x.bytes;
        if (same && (x.writes || y.writes)) {
          EXPECT_TRUE(before[a][b]) << round << " " << a << " " << b;
        }
        if (!before[a][b]) ++beside;
      }
    }
  }
  EXPECT_GT(beside, 1000) << "two streams that are one";
}

TEST(StreamPlan, AGatherRunsBesideTheNodesBeforeItsFirstUse) {
  const StreamPlan plan = plan_streams({step(true, 0, 8, true), step(false, 16, 8, true),
                                        step(false, 32, 8, true), step(false, 0, 4, false)});
  EXPECT_EQ(plan.steps[1].waits, -1);
  EXPECT_EQ(plan.steps[2].waits, -1);
  EXPECT_EQ(plan.steps[3].waits, plan.steps[0].records);
  EXPECT_EQ(plan.join, plan.steps[0].records);
}

TEST(StreamPlan, OneStreamNeedsNoEvent) {
  const StreamPlan plan = plan_streams({step(false, 0, 8, true), step(false, 0, 8, true)});
  EXPECT_EQ(plan.events, 0);
  EXPECT_EQ(plan.join, -1);
}

}  // namespace
}  // namespace ofsdp
