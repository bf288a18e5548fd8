#include "runtime/log/screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/base/text.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace screen_test {

TEST(Readable, BytesHaveThreeDigitsAndAUnit) {
  EXPECT_EQ(readable_bytes(0), "0 B");
  EXPECT_EQ(readable_bytes(999), "999 B");
  EXPECT_EQ(readable_bytes(1000), "0.98 KiB");
  EXPECT_EQ(readable_bytes(1023), "1.00 KiB");
  EXPECT_EQ(readable_bytes(10240), "10.0 KiB");
  EXPECT_EQ(readable_bytes(103538688), "98.7 MiB");
  EXPECT_EQ(readable_bytes(uint64_t{12} << 30), "12.0 GiB");
  EXPECT_EQ(readable_bytes(uint64_t{700} << 30), "700 GiB");
}

TEST(Readable, CountsHaveCommasAndSecondsAClock) {
  EXPECT_EQ(readable_count(0), "0");
  EXPECT_EQ(readable_count(123), "123");
  EXPECT_EQ(readable_count(1199882), "1,199,882");
  EXPECT_EQ(readable_count(-123456), "-123,456");
  EXPECT_EQ(readable_seconds(2.934), "2.93 s");
  EXPECT_EQ(readable_seconds(125), "2:05");
  EXPECT_EQ(readable_seconds(3725), "1:02:05");
}

TEST(ScreenText, ListsAreCutToLinesThatSayHowManyMoreThereAre) {
  const std::vector<std::string> items(50, "0123456789");
  EXPECT_EQ(wrapped("x: ", {"a", "b"}, 1), "x: a, b\n");
  for (const int most : {1, 2, 3}) {
    const std::string text = wrapped("label: ", items, most);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), most);
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;) {
      EXPECT_LE(end - begin, 100u);
      begin = end + 1;
    }
    const auto shown = std::count(text.begin(), text.end(), '9');
    EXPECT_THAT(text,
                testing::EndsWith(format_text("... and {} more (--verbose on)\n", 50 - shown)));
  }
}

TEST(ScreenText, TheOpeningIsShortForAnyFacts) {
  OpeningFacts facts;
  facts.model = "m.onnx";
  facts.settings.assign(300, "some-option with a value");
  facts.fused.assign(80, "attention_operands 4");
  facts.notices.assign(30, "device: the CPU");
  facts.wrap_notice = "wrap transformer: no repeated block found";
  facts.memory.assign(20, {"activations", 123456789});
  const std::string text = opening_text(facts);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), kOpeningLines);
}

TEST(ScreenText, NumbersHaveThreeDigitsAndNoExponent) {
  EXPECT_EQ(readable_number(4610), "4610");
  EXPECT_EQ(readable_number(1234567.8), "1234568");
  EXPECT_EQ(readable_number(99.96), "100");
  EXPECT_EQ(readable_number(12.34), "12.3");
  EXPECT_EQ(readable_number(9.999), "10.0");
  EXPECT_EQ(readable_number(1.234), "1.23");
  EXPECT_EQ(readable_number(0.157), "0.157");
  EXPECT_EQ(readable_number(1e-9), "0.000");
}

TEST(ScreenText, TheClosingNamesTimeRateMemoryAndFiles) {
  const ClosingFacts facts{.updates = 20,
                           .stopped_early = true,
                           .seconds = 125,
                           .rate = 1234,
                           .rated = "tokens",
                           .median_step_ms = 12.34,
                           .peak_bytes = {1 << 20, 1 << 21},
                           .exposed = "exposed communication: none"};
  EXPECT_EQ(closing_text(facts) + written_text({{"t.onnx", ""}, {"m.jsonl", "metrics"}}),
            "done: 20 updates, stopped early, in 2:05, 1234 tokens/s, 12.3 ms an update (median)\n"
            "peak memory: 1.00 MiB, 2.00 MiB (ranks 0 to 1)\n"
            "exposed communication: none\n"
            "wrote t.onnx\n"
            "wrote m.jsonl (metrics)\n");
}

}  // namespace screen_test
}  // namespace ofsdp
