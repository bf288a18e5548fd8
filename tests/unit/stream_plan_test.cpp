// Streams of a device: operations on the same bytes run in schedule order. The test searches
// through the events and knows nothing about their placement. Other operations may run side by
// side.
#include <gtest/gtest.h>

#include <random>

#include "runtime/compile/program/operation.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace stream_plan_test {

std::byte memory[64];

constexpr Lane kCompute = Lane::kCompute, kCommunication = Lane::kCommunication,
               kDownload = Lane::kDownload;

StepAccess step(Lane stream, int begin, int bytes, bool writes) {
  return {stream, {{memory + begin, static_cast<size_t>(bytes), writes}}, {}};
}

StepAccess copied(StepAccess step) {
  step.copies = step.touches;
  return step;
}

// The steps that have ended at a point on a stream. Each step has a begin (on the communication
// stream, unless it is the compute stream's) and an end, and copies up before the begin. Points are
// 2 s, 2 s + 1 and, for the copies, 2 n + s.
class Order {
 public:
  explicit Order(const StreamSchedule& plan)
      : steps_(plan.steps.size()), before_(3 * steps_, std::vector<bool>(3 * steps_, false)) {
    std::vector<int> recorder(static_cast<size_t>(plan.events), -1);
    int last[3] = {-1, -1, -1}, fork = -1, last_copy = -1;
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const StreamStep& step = plan.steps[s];
      const int begin = static_cast<int>(2 * s), end = begin + 1;
      int& first = last[step.stream == kCompute ? 0 : 1];
      after(first, begin);
      if (step.forks >= 0) {
        fork = last[0];
        after(fork, begin);
      }
      if (step.stream != kCompute) {
        const int copy = static_cast<int>(2 * steps_ + s);
        after(last_copy, copy);
        after(fork, copy);
        for (const int event : step.copies_wait) after(recorder[static_cast<size_t>(event)], copy);
        after(copy, begin);
        last_copy = copy;
      }
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
  bool before_copies(size_t a, size_t b) const { return before_[2 * a + 1][2 * steps_ + b]; }

 private:
  void after(int a, int b) {
    if (a < 0) return;
    for (std::vector<bool>& point : before_) {
      if (point[static_cast<size_t>(a)]) point[static_cast<size_t>(b)] = true;
    }
    before_[static_cast<size_t>(a)][static_cast<size_t>(b)] = true;
  }

  size_t steps_;
  std::vector<std::vector<bool>> before_;
};

Lane drawn(std::mt19937& random) {
  const auto number = random() % 6;
  return number == 0 ? kDownload : number < 3 ? kCommunication : kCompute;
}

TEST(StreamSchedule, ConflictingStepsAreOrderedOthersAreNot) {
  std::mt19937 random(3);
  int beside = 0, beside_copies = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<StepAccess> steps;
    for (int s = 0; s < 30; ++s) {
      steps.push_back(step(drawn(random), static_cast<int>(random() % 56),
                           1 + static_cast<int>(random() % 8), random() % 2 == 0));
      const bool copies = steps.back().stream == kCommunication && steps.back().touches[0].writes;
      if (copies && random() % 2 == 0) steps.back() = copied(steps.back());
    }
    const Order order(schedule_streams(steps));
    for (size_t a = 0; a < steps.size(); ++a) {
      for (size_t b = a + 1; b < steps.size(); ++b) {
        const MemoryAccess &x = steps[a].touches[0], &y = steps[b].touches[0];
        const bool same = x.data < y.data + y.bytes && y.data < x.data + x.bytes;
        if (same && (x.writes || y.writes)) {
          EXPECT_TRUE(order.before(a, b)) << round << " " << a << " " << b;
          if (!steps[b].copies.empty()) {
            EXPECT_TRUE(order.before_copies(a, b)) << round << " " << a << " " << b;
          }
        }
        if (!order.before(a, b)) ++beside;
        if (!steps[b].copies.empty() && !order.before_copies(a, b)) ++beside_copies;
      }
    }
  }
  EXPECT_GT(beside, 1000) << "streams that are one";
  EXPECT_GT(beside_copies, 1000) << "copies up that wait for all";
}

TEST(StreamSchedule, AGatherRunsBesideTheNodesBeforeItsFirstUse) {
  const StreamSchedule plan =
      schedule_streams({step(kCommunication, 0, 8, true), step(kCompute, 16, 8, true),
                        step(kCompute, 32, 8, true), step(kCompute, 0, 4, false)});
  EXPECT_TRUE(plan.steps[1].waits.empty());
  EXPECT_TRUE(plan.steps[2].waits.empty());
  EXPECT_EQ(plan.steps[3].waits, std::vector<int>{plan.steps[0].records});
  EXPECT_EQ(plan.joins, std::vector<int>{plan.steps[0].records});
}

TEST(StreamSchedule, AGatherDoesNotWaitForTheDownloadBeforeIt) {
  const StreamSchedule plan = schedule_streams(
      {step(kCompute, 0, 8, true), step(kDownload, 0, 8, false), step(kCommunication, 16, 8, true),
       step(kCompute, 16, 8, false), step(kCompute, 0, 8, true)});
  EXPECT_TRUE(plan.steps[2].waits.empty());
  EXPECT_EQ(plan.steps[3].waits, std::vector<int>{plan.steps[2].records});
  EXPECT_EQ(plan.steps[4].waits, std::vector<int>{plan.steps[1].records});
  EXPECT_EQ(plan.joins.size(), 2u);
}

TEST(StreamSchedule, ACopyUpWaitsForTheEarlierReaderOfItsPlace) {
  const StreamSchedule plan = schedule_streams(
      {step(kCompute, 0, 8, true), step(kCommunication, 0, 8, false),
       copied(step(kCommunication, 16, 8, true)), copied(step(kCommunication, 0, 4, true))});
  EXPECT_TRUE(plan.steps[2].copies_wait.empty());
  EXPECT_EQ(plan.steps[3].copies_wait, std::vector<int>{plan.steps[1].records});
}

TEST(StreamSchedule, OneStreamNeedsNoEvent) {
  const StreamSchedule plan =
      schedule_streams({step(kCompute, 0, 8, true), step(kCompute, 0, 8, true)});
  EXPECT_EQ(plan.events, 0);
  EXPECT_TRUE(plan.joins.empty());
}

}  // namespace stream_plan_test
}  // namespace ofsdp
