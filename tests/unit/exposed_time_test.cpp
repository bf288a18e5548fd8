// The report on communication after a run, and the ring of traced events.
#include "runtime/log/exposed_time.h"

#include <gtest/gtest.h>

#include "runtime/compile/compile.h"
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
  const auto text = exposed_text(ExposedTime(2), plan, *communicator, true);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, "");
}

// The report for two ranks with the same times.
std::string report_of(const std::vector<double>& unit_ms, bool units = true) {
  ExposedTime time(unit_ms.size() - 1);
  time.begin_update();
  for (size_t i = 0; i < unit_ms.size(); ++i) {
    time.add(static_cast<int>(i) - 1, static_cast<int64_t>(unit_ms[i] * kMillisecond));
  }
  time.end_update();
  Plan plan;
  plan.units.resize(unit_ms.size() - 1);
  for (size_t u = 0; u < plan.units.size(); ++u) plan.units[u].name = format_text("part{}", u);
  const auto ranks = make_absent_ranks(2, 1, true);
  const auto text = exposed_text(time, plan, *ranks, units);
  EXPECT_TRUE(text.ok());
  return *text;
}

TEST(ExposedTime, NumbersHaveNoExponentAndStandBelowEachOther) {
  EXPECT_EQ(report_of({12.3, 4600, 0.004}),
            "waiting for communication: 4612 ms per step (median, slowest rank)\n"
            "waited 4600 ms for unit 0 (part0)\n"
            "waited   12 ms for the end of the update\n"
            "waited    0 ms for unit 1 (part1)");
  EXPECT_EQ(report_of({0.157, 26.7, 0}),
            "waiting for communication: 26.9 ms per step (median, slowest rank)\n"
            "waited 26.7 ms for unit 0 (part0)\n"
            "waited  0.2 ms for the end of the update\n"
            "waited  0.0 ms for unit 1 (part1)");
  EXPECT_EQ(report_of({0.00001, 0.2}),
            "waiting for communication: 0.200 ms per step (median, slowest rank)\n"
            "waited 0.200 ms for unit 0 (part0)\n"
            "waited 0.000 ms for the end of the update");
  EXPECT_EQ(report_of({0.4, 1.5}, /*units=*/false),
            "waiting for communication: 1.90 ms per step (median, slowest rank)");
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
