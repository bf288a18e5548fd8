#include "runtime/log/screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>

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
    EXPECT_THAT(text, testing::EndsWith(format_text("... and {} more (--verbose)\n", 50 - shown)));
  }
}

TEST(ScreenText, TheOpeningIsShortForAnyFacts) {
  OpeningFacts facts;
  facts.model = "m.onnx";
  facts.settings.assign(300, "some-option with a value");
  facts.notices.assign(30, "device: the CPU");
  facts.memory.assign(20, {"activations", 123456789});
  facts.files.assign(20, {"some/folder/with/a/file.jsonl", "metrics"});
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

ClosingFacts closing() {
  ClosingFacts facts{.updates = 20,
                     .step = 20,
                     .total = 30,
                     .epoch = 1,
                     .epochs = 1.25,
                     .loss = 0.4118,
                     .stopped_early = true,
                     .seconds = 125,
                     .samples_per_s = 617,
                     .tokens_a_sample = 2,
                     .median_step_ms = 12.34,
                     .peak_bytes = {1 << 20, 1 << 21},
                     .exposed = "waiting for communication: 1.90 ms per step"};
  const MetricValue metrics[] = {{"accuracy", 0.7967}, {"auc"}};
  facts.evaluation.emplace();
  facts.evaluation->take({20, 1, 0.5699, metrics});
  return facts;
}

TEST(ScreenText, TheQuietResultIsTheLastUpdateAndEvaluation) {
  EXPECT_EQ(quiet_text(closing()),
            "epoch 2  step 20/30  loss 0.4118\n"
            "eval  step 20  loss 0.5699  accuracy 0.7967\n");
  EXPECT_EQ(quiet_text({}), "");
}

TEST(ScreenText, TheObjectsOfJson) {
  EXPECT_EQ(training_json("m.onnx", closing(), {{"t.onnx", ""}, {"a", "log"}, {"b", "log"}}),
            R"({"command":"train","epochs":1.25,"eval":{"accuracy":0.7967,"auc":null,)"
            R"("loss":0.5699,"step":20},"files":{"log":["a","b"],"model":"t.onnx"},"loss":0.4118,)"
            R"("model":"m.onnx","peak_bytes":2097152,"samples_per_s":617.0,"seconds":125.0,)"
            R"("skipped":0,"step":20,"step_ms":12.34,"stopped":false,"stopped_early":true,)"
            R"("updates":20})"
            "\n");
  EXPECT_EQ(training_json("m.onnx", {}, {}),
            R"({"command":"train","epochs":null,"eval":null,"files":{},"loss":null,)"
            R"("model":"m.onnx","peak_bytes":0,"samples_per_s":0.0,"seconds":0.0,"skipped":0,)"
            R"("step":0,"step_ms":0.0,"stopped":false,"stopped_early":false,"updates":0})"
            "\n");
  EXPECT_EQ(evaluation_json("m.onnx", {3, 0, std::nan(""), {}}, 7),
            R"({"command":"eval","loss":null,"metrics":{},"model":"m.onnx","samples":7,"step":3})"
            "\n");
}

OpeningFacts opening() {
  OpeningFacts facts;
  facts.model = "samples/mnist/mnist.onnx";
  facts.tensors = facts.trained_tensors = 8;
  facts.numbers = facts.trained_numbers = 1199882;
  facts.data = {"samples/mnist/data.yaml", 60000, 938, 64, 10000, ""};
  facts.loss = "the mean over the labels of 'labels'";
  facts.settings = {
      "nproc-per-node 2",         "loss nll",         "prediction logits", "labels labels",
      "optimizer adadelta",       "lr-schedule step", "batch-size 64",     "output out/mnist.onnx",
      "metrics out/metrics.jsonl"};
  facts.notices = {
      "parameters and computation bfloat16, reduction float32, buffers float32; masters, "
      "optimizer state, loss float32"};
  facts.memory = {{"input", 55800000},
                  {"activations", 20700000},
                  {"gradients", 4800000},
                  {"optimizer state", 4800000}};
  facts.device = "CPU";
  facts.strategy = "full_shard";
  facts.ranks = 2;
  facts.planned_bytes = 103538688;
  facts.files = {{"out/mnist.onnx", ""}, {"out/metrics.jsonl", "metrics"}};
  return facts;
}

// In a file sentences stay whole, for `grep`.
TEST(ScreenText, TheOpeningInAFileFoldsOnlyLists) {
  const std::string text = opening_text(opening());
  EXPECT_THAT(text, testing::HasSubstr("\n" + opening().notices[0] + "\n"));
  EXPECT_THAT(text, testing::HasSubstr(
                        "settings: nproc-per-node 2, loss nll, prediction logits, labels labels, "
                        "optimizer adadelta,\n          lr-schedule step, "));
}

TEST(ScreenText, TheOpeningSaysWhenTheWeightsWillBeLost) {
  OpeningFacts facts = opening();
  facts.files = {};
  EXPECT_THAT(opening_text(facts), testing::EndsWith("\nwrites: nothing (--output FILE.onnx "
                                                     "keeps the trained model)\n"));
  facts.files = {{"m.jsonl", "metrics"}};
  EXPECT_THAT(opening_text(facts),
              testing::EndsWith("\nwrites: no trained model (--output FILE.onnx keeps it), "
                                "m.jsonl (metrics)\n"));
  facts.trains = false;
  facts.data.eval_name = "test.yaml";
  const std::string eval = opening_text(facts);
  EXPECT_THAT(eval, testing::StartsWith("model: samples/mnist/mnist.onnx, 1,199,882 numbers in 8 "
                                        "tensors\ndata: 10,000 rows of test.yaml\n"));
  EXPECT_THAT(eval, testing::EndsWith("\nwrites: m.jsonl (metrics)\n"));
}

TEST(ScreenText, FoldedLinesEndAfterItemsAndKeepLongWords) {
  EXPECT_EQ(folded("short", 60), "short");
  EXPECT_EQ(folded("eval  step 938  loss 0.0412  accuracy 0.9871  top5 0.9999  f1 0.9", 60),
            "eval  step 938  loss 0.0412  accuracy 0.9871  top5 0.9999\n  f1 0.9");
  const std::string closing_block = closing_text(closing());
  EXPECT_EQ(folded_lines(closing_block, {}), closing_block);
  EXPECT_THAT(folded_lines(closing_block, 60),
              testing::StartsWith("done: 20 updates, stopped early, in 2:05,\n"
                                  "  1234 tokens/s during updates, 12.3 ms an update (median)\n"
                                  "peak memory: 1.00 MiB, 2.00 MiB (ranks 0 to 1)\n"));
  const std::string word(70, 'x');
  EXPECT_EQ(folded(word, 60), word);
  EXPECT_EQ(folded("a " + word + " b", 60), "a\n  " + word + "\n  b");
  EXPECT_EQ(folded("first item of this line, second; third item of the same line and more", 60),
            "first item of this line, second;\n  third item of the same line and more");
}

LineFacts line_facts() {
  return {.step = 250,
          .total = 938,
          .loss = 0.4321,
          .lr = 0.001,
          .rate = 5321,
          .peak_bytes = 103538688,
          .eta = 12};
}

std::string bar_line(const LineFacts& facts, size_t columns) {
  LineBuffer text;
  const BarPlace place = add_bar_line(text, facts, columns);
  const std::string line(text.view());
  EXPECT_EQ(place.end > place.begin, line.find('[') != std::string::npos) << line;
  if (place.end > place.begin) {
    EXPECT_EQ(line[place.begin], '[') << line;
    EXPECT_EQ(line[place.end - 1], ']') << line;
  }
  return line;
}

// As a code block in a page.
std::string code_block(const std::string& text) {
  std::istringstream lines(text);
  std::string block;
  for (std::string line; std::getline(lines, line);) block += "    " + line + "\n";
  return block;
}

TEST(ScreenText, TheTextsOfThePage) {
  std::ifstream file(OFSDP_SOURCE_DIR "/docs/internals/screen.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  for (const size_t columns : {60, 80, 120}) {
    EXPECT_THAT(page, testing::HasSubstr(format_text("## {} columns\n\n{}\n{}", columns,
                                                     code_block(opening_text(opening(), columns)),
                                                     code_block(bar_line(line_facts(), columns)))));
  }
  const std::string files = written_text({{"t.onnx", ""}, {"m.jsonl", "metrics"}});
  EXPECT_THAT(page,
              testing::EndsWith("## The end\n\n" + code_block(closing_text(closing()) + files)));
}

TEST(ScreenText, TheBarOfAnEvaluation) {
  EXPECT_EQ(bar_line({.epoch = -1, .step = 12, .total = 40, .evaluates = true, .eta = 5}, 60),
            "[======>             ] eval 12/40  eta 0:05");
}

TEST(ScreenText, ABarLeavesOutWholeFieldsTheLeastImportantFirst) {
  LineFacts facts = line_facts();
  facts.skips = 3;
  const std::vector<std::string> fields = {"250/938",  "loss 0.4321", "eta 0:12", "5321 samples/s",
                                           "98.7 MiB", "skipped 3",   "epoch 1",  "lr 0.001"};
  size_t most = 0;
  for (size_t columns = 1; columns <= 120; ++columns) {
    const std::string line = bar_line(facts, columns);
    EXPECT_LT(line.size(), columns);
    size_t shown = 0, bytes = 0;
    for (const std::string& field : fields) {
      if (line.find(field) == std::string::npos) break;
      bytes += field.size();
      ++shown;
    }
    const size_t bar = line.find('['),
                 cells = bar == std::string::npos ? 0 : line.find(']') - bar + 2;
    const size_t gaps = shown > 0 ? 2 * (shown - 1) : 0;
    EXPECT_EQ(line.size(), bytes + gaps + cells) << line;
    EXPECT_GE(shown, most) << columns;
    most = shown;
  }
  EXPECT_EQ(most, fields.size());
}

TEST(ScreenText, ALineOfAFileHasAllFields) {
  LineBuffer text;
  add_log_line(text, line_facts());
  EXPECT_EQ(text.view(),
            "epoch 1  step 250/938  loss 0.4321  lr 0.001  5321 samples/s  98.7 MiB  eta 0:12");
}

}  // namespace screen_test
}  // namespace ofsdp
