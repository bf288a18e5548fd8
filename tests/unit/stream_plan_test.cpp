// Streams of a device: what touches the same bytes is ordered as in the schedule, by a search
// through the events that knows nothing of how they were placed; what does not may run side by
// side.
#include "runtime/program/stream_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

std::byte memory[64];

constexpr Lane kCompute = Lane::kCompute, kCommunication = Lane::kCommunication,
               kDownload = Lane::kDownload;

StepAccess step(Lane stream, int begin, int bytes, bool writes) {
  return {stream, {{memory + begin, static_cast<size_t>(bytes), writes}}};
}

// The steps that have ended at a point of a stream, each with a begin (on the communication stream,
// if it is not the compute stream's) and an end. Points are 2 s and 2 s + 1.
class Order {
 public:
  explicit Order(const StreamPlan& plan)
      : before_(2 * plan.steps.size(), std::vector<bool>(2 * plan.steps.size(), false)) {
    std::vector<int> recorder(static_cast<size_t>(plan.events), -1);
    int last[3] = {-1, -1, -1};
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const StreamStep& step = plan.steps[s];
      const int begin = static_cast<int>(2 * s), end = begin + 1;
      int& first = last[step.stream == kCompute ? 0 : 1];
      after(first, begin);
      if (step.forks >= 0) after(last[0], begin);
      for (const int event : step.waits) after(recorder[static_cast<size_t>(event)], begin);
      after(begin, end);
      first = step.stream == kDownload ? begin : end;
      if (step.stream == kDownload) {
        after(last[2], end);
        last[2] = end;
      }
      if (step.records >= 0) recorder[static_cast<size_t>(step.records)] = end;
    }
  }

  // a has ended when b begins.
  bool before(size_t a, size_t b) const { return before_[2 * a + 1][2 * b]; }

 private:
  void after(int a, int b) {
    if (a < 0) return;
    for (std::vector<bool>& point : before_) {
      if (point[static_cast<size_t>(a)]) point[static_cast<size_t>(b)] = true;
    }
    before_[static_cast<size_t>(a)][static_cast<size_t>(b)] = true;
  }

  std::vector<std::vector<bool>> before_;
};

Lane drawn(std::mt19937& random) {
  const auto number = random() % 6;
  return number == 0 ? kDownload : number < 3 ? kCommunication : kCompute;
}

TEST(StreamPlan, ConflictingStepsAreOrderedOthersAreNot) {
  std::mt19937 random(3);
  int beside = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<StepAccess> steps;
    for (int s = 0; s < 30; ++s) {
      steps.push_back(step(drawn(random), static_cast<int>(random() % 56),
                           1 + static_cast<int>(random() % 8), random() % 2 == 0));
    }
    const Order order(plan_streams(steps));
    for (size_t a = 0; a < steps.size(); ++a) {
      for (size_t b = a + 1; b < steps.size(); ++b) {
        const MemoryAccess &x = steps[a].touches[0], &y = steps[b].touches[0];
        const bool same = x.data < y.data + y.bytes && y.data < x.data + x.bytes;
        if (same && (x.writes || y.writes)) {
          EXPECT_TRUE(order.before(a, b)) << round << " " << a << " " << b;
        }
        if (!order.before(a, b)) ++beside;
      }
    }
  }
  EXPECT_GT(beside, 1000) << "streams that are one";
}

TEST(StreamPlan, AGatherRunsBesideTheNodesBeforeItsFirstUse) {
  const StreamPlan plan =
      plan_streams({step(kCommunication, 0, 8, true), step(kCompute, 16, 8, true),
                    step(kCompute, 32, 8, true), step(kCompute, 0, 4, false)});
  EXPECT_TRUE(plan.steps[1].waits.empty());
  EXPECT_TRUE(plan.steps[2].waits.empty());
  EXPECT_EQ(plan.steps[3].waits, std::vector<int>{plan.steps[0].records});
  EXPECT_EQ(plan.joins, std::vector<int>{plan.steps[0].records});
}

TEST(StreamPlan, AGatherDoesNotWaitForTheDownloadBeforeIt) {
  const StreamPlan plan = plan_streams({step(kCompute, 0, 8, true), step(kDownload, 0, 8, false),
                                        step(kCommunication, 16, 8, true),
                                        step(kCompute, 16, 8, false), step(kCompute, 0, 8, true)});
  EXPECT_TRUE(plan.steps[2].waits.empty());
  EXPECT_EQ(plan.steps[3].waits, std::vector<int>{plan.steps[2].records});
  EXPECT_EQ(plan.steps[4].waits, std::vector<int>{plan.steps[1].records});
  EXPECT_EQ(plan.joins.size(), 2u);
}

TEST(StreamPlan, OneStreamNeedsNoEvent) {
  const StreamPlan plan = plan_streams({step(kCompute, 0, 8, true), step(kCompute, 0, 8, true)});
  EXPECT_EQ(plan.events, 0);
  EXPECT_TRUE(plan.joins.empty());
}

}  // namespace
}  // namespace ofsdp
