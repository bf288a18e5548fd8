// The scripts that samples share: a plot and the last loss from a metrics file, only by awk. And
// the table in samples/mnist.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace sample_scripts_test {

using testing_data::TempFolder;

const std::string kCommon = OFSDP_SOURCE_DIR "/samples/common/";

constexpr const char* kMetrics =
    R"({"kind":"step","step":1,"epoch":0,"loss":4,"grad_norm":1}
{"kind":"step","step":2,"epoch":0,"loss":null,"grad_norm":null}
{"kind":"step","step":3,"epoch":0,"loss":2e0,"grad_norm":1}
{"kind":"eval","step":3,"epoch":0,"loss":2.51236,"accuracy":0.5}
{"kind":"eval","step":4,"epoch":0,"loss":2.12346,"accuracy":0.5}
{"kind":"end","steps":4,"seconds":1}
)";

TEST(SampleScripts, PlotIsOneSvgOfStepsAndEvaluations) {
  const TempFolder folder;
  folder.write("m.jsonl", kMetrics);
  const std::string out = folder.path() + "/loss.svg";
  const Finished run =
      Program::run({kCommon + "plot.sh", folder.path() + "/m.jsonl", out, "Title"});
  ASSERT_EQ(run.status, 0) << run.err;
  const std::string svg = onnx_bytes::content(out);
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg;
  EXPECT_NE(svg.find(">Title</text>"), std::string::npos);
  // Step 1 of 4 at the top, step 3 at the bottom; the evaluations between.
  EXPECT_NE(svg.find("points=\"235.0,40.0 585.0,400.0 \""), std::string::npos) << svg;
  EXPECT_NE(svg.find("cx=\"585.0\" cy=\"307.8\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("cx=\"760.0\" cy=\"377.8\""), std::string::npos) << svg;
}

TEST(SampleScripts, WithoutLossesThereIsNoPlot) {
  const TempFolder folder;
  folder.write("m.jsonl", "{\"kind\":\"end\",\"steps\":0}\n");
  const std::string out = folder.path() + "/loss.svg";
  const Finished run = Program::run({kCommon + "plot.sh", folder.path() + "/m.jsonl", out});
  EXPECT_NE(run.status, 0);
  EXPECT_NE(run.err.find("no loss in it"), std::string::npos) << run.err;
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_FALSE(std::filesystem::exists(out + ".part"));
}

TEST(SampleScripts, LastLossIsThatOfTheLastEvaluation) {
  const TempFolder folder;
  folder.write("m.jsonl", kMetrics);
  const Finished run = Program::run({kCommon + "last_loss.sh", folder.path() + "/m.jsonl"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.out, "validation loss 2.1235\n");
  folder.write("m.jsonl", "{\"kind\":\"step\",\"step\":1,\"loss\":4}\n");
  EXPECT_EQ(Program::run({kCommon + "last_loss.sh", folder.path() + "/m.jsonl"}).status, 1);
}

// The rows and pictures from samples/mnist/table.sh, for short runs of another model.
TEST(SampleScripts, TheTableHasARowAndCurvesForEachRun) {
  const TempFolder folder;
  const auto run = [&](const char* name, const Words& more) {
    const std::string at = folder.path() + "/" + name;
    const Words words = Words{fixture("mlp/model.onnx"), "--loss", "cross_entropy"} + ranks(2) +
                        Words{"--threads", "1"} + more;
    const Finished plan = Program::run(fsdp_run({"plan", "--json"}) + words);
    folder.write(std::string(name) + ".plan.json", plan.out);
    const Words train = fsdp_run(words) + Words{"--run-dir", "none", "--steps", "5"};
    EXPECT_EQ(Program::run(train + Words{"--metrics", at + ".jsonl"}).status, 0);
    EXPECT_EQ(Program::run(train + Words{"--trace", at + ".trace.json"}).status, 0);
  };
  run("no_shard", {"--strategy", "no_shard"});
  run("one_unit", {"--wrap", "none"});
  run("by_size", {"--wrap", "size", "--min-params", "1000"});
  run("auto", {"--wrap", "auto"});
  const Finished table =
      Program::run({"/usr/bin/python3", OFSDP_SOURCE_DIR "/samples/mnist/table.py", folder.path()});
  ASSERT_EQ(table.status, 0) << table.err;
  const auto count = [](const std::string& text, const std::string& word) {
    int found = 0;
    for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  EXPECT_EQ(count(table.out, "to the byte"), 4) << table.out;
  const std::string time = onnx_bytes::content(folder.path() + "/time.svg");
  EXPECT_EQ(count(time, "<rect "), 1 + 2 + 4 * 4);
  const std::string memory = onnx_bytes::content(folder.path() + "/memory.svg");
  EXPECT_EQ(count(memory, "<polyline "), 4 * (3 + 2 + 1));  // grid, ranks, plan
  EXPECT_EQ(count(memory, "stroke-dasharray"), 4);
  EXPECT_TRUE(memory.ends_with("</svg>\n"));
}

}  // namespace sample_scripts_test
}  // namespace ofsdp
