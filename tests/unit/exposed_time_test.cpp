// The report on communication at the end of a run, and the ring of traced events.
#include "runtime/log/exposed_time.h"

#include <gtest/gtest.h>

#include "runtime/log/trace.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace exposed_time_test {

constexpr int64_t kMillisecond = 1000000;

TEST(ExposedTime, MediansByUnitWithoutWhatIsBetweenUpdates) {
  ExposedTime time(2);
  for (const int64_t ms : {3, 1, 2, 5, 4}) {
    time.begin_update();
    time.add(0, ms * kMillisecond / 2);
    time.add(0, ms * kMillisecond / 2);
    time.add(1, 10 * kMillisecond);
    time.add(-1, kMillisecond);
    time.end_update();
    time.add(0, 1000 * kMillisecond);  // an evaluation
  }
  EXPECT_EQ(time.updates(), 5);
  EXPECT_DOUBLE_EQ(time.median_ms(0), 3);
  EXPECT_DOUBLE_EQ(time.median_ms(1), 10);
  EXPECT_DOUBLE_EQ(time.median_ms(-1), 1);
  EXPECT_DOUBLE_EQ(time.median_total_ms(), 14);
}

TEST(ExposedTime, OneRankWaitsForNobody) {
  const auto communicator = make_self_communicator();
  Plan plan;
  plan.units.resize(2);
  const auto text = exposed_text(ExposedTime(2), plan, *communicator);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, "exposed communication: none, one rank");
}

TEST(Trace, TheRingKeepsTheLastEvents) {
  std::vector<TraceEvent> memory(4);
  TraceRecorder recorder(std::as_writable_bytes(std::span(memory)));
  EXPECT_EQ(recorder.size(), 0u);
  for (int64_t i = 1; i <= 6; ++i)
    recorder.add({nullptr, i * 1000, i * 1000 + 500, kTraceUpdate, TraceRow::kOfStep, i});
  ASSERT_EQ(recorder.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(recorder.event(i).update, static_cast<int64_t>(i) + 3);
  const std::string lines = trace_lines(recorder, Plan(), 1, 1000);
  EXPECT_NE(lines.find(R"({"name":"update 3","cat":"update","ph":"X","pid":1,"tid":0,"ts":2.000,)"
                       R"("dur":0.500,"args":{"update":3}})"),
            std::string::npos)
      << lines;
  EXPECT_EQ(lines.find("update 2"), std::string::npos);
}

}  // namespace exposed_time_test
}  // namespace ofsdp
