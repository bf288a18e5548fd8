// Host work that is no kernel: parts on several threads, and runs in the background.
#include "kernels/base/host_tasks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "tests/support/namespaces.h"

namespace ofsdp {
namespace host_tasks_test {

TEST(ForEachTask, CallsEveryPartOnceAndReturnsTheFirstFailure) {
  for (const int threads : {1, 3}) {
    std::vector<std::atomic<int>> calls(1000);
    const Status status = base::for_each_task(threads, 1000, [&](int64_t i) -> Status {
      ++calls[static_cast<size_t>(i)];
      if (i == 700 || i == 333) return fault("part {}", i);
      return ok_status();
    });
    EXPECT_EQ(status.message(), "part 333");
    for (const auto& count : calls) EXPECT_EQ(count, 1);
  }
  EXPECT_TRUE(base::for_each_task(4, 0, [](int64_t) { return fault("none"); }).ok());
}

// Ends only when two threads meet in it.
TEST(ForEachTask, PartsRunAtOnce) {
  std::latch both(2);
  const Status status = base::for_each_task(2, 2, [&](int64_t) {
    both.arrive_and_wait();
    return ok_status();
  });
  EXPECT_TRUE(status.ok());
}

TEST(BackgroundTask, RunsNeverOverlapAndSeeWhatCameBeforeTheirRequest) {
  int written = 0, seen = 0;  // without a lock of ours: a race would show in the preset `tsan`
  std::atomic<int> running{0}, runs{0};
  {
    base::BackgroundTask task("test-task", "the test", [&] {
      EXPECT_EQ(++running, 1);
      ++seen;
      --running;
      ++runs;
    });
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(task.request().ok());
    while (runs < 200) std::this_thread::yield();
    task.stop();
    written = seen;
    EXPECT_TRUE(task.request().ok());  // dropped
  }
  EXPECT_EQ(written, 200);
  EXPECT_EQ(runs, 200);
}

TEST(BackgroundTask, StopWaitsForTheRunInProgressAndDropsTheOthers) {
  std::atomic<int> runs{0};
  std::latch began(1);
  base::BackgroundTask task("test-task", "the test", [&] {
    began.count_down(runs == 0 ? 1 : 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ++runs;
  });
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(task.request().ok());
  began.wait();
  task.stop();
  const int at_the_end = runs;
  EXPECT_GE(at_the_end, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  EXPECT_EQ(runs, at_the_end);
}

// A busy checkpoint writer must not hold up the reader of data.
TEST(BackgroundTask, DifferentTasksRunAtOnce) {
  std::latch both(2);
  const auto meet = [&] { both.arrive_and_wait(); };
  base::BackgroundTask first("test-first", "the first", meet);
  base::BackgroundTask second("test-second", "the second", meet);
  ASSERT_TRUE(first.request().ok());
  ASSERT_TRUE(second.request().ok());
  both.wait();
}

}  // namespace host_tasks_test
}  // namespace ofsdp
