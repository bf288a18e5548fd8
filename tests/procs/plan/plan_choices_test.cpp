// `plan --fit` and `plan --compare` through the real command. Each promised change is
// compared with the plan of the printed command, typed again, and with the weights that it
// trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/shell_words.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace plan_choices_test {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing_data::TempFolder;

constexpr int kMostLines = 20;

Finished done(const Words& words) {
  Finished run = Program::run(words);
  EXPECT_EQ(run.status, 0) << run.err;
  return run;
}

Json parsed(const Words& words) { return Json::parse(done(words).out); }

size_t peak(const Json& plan) { return plan.at("memory").at("peak_bytes").get<size_t>(); }

Words mlp_plan() {
  return fsdp_run({"plan", fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params",
                   "1000", "--batch-size", "16", "--threads", "1"});
}

// The sample's activations, states and parameters all count.
Words gpt_plan() {
  return fsdp_run(
      {"plan", sample_model("gpt/gpt.onnx"), "--global-batch-size", "48", "--threads", "1"});
}

TEST(PlanOfManyRanks, GoesUpToTheRanksOfARun) {
  for (const char* device : {"cpu", "cuda"}) {
    const Words command = fsdp_run({"plan", sample_model("gpt/gpt.onnx"), "--global-batch-size",
                                    "8192", "--threads", "1", "--device", device, "--world"});
    const Json few = parsed(command + Words{"1024", "--json"});
    const Json plan = parsed(command + Words{"4096", "--json"});
    EXPECT_LT(peak(plan), peak(few)) << "shards of more ranks are smaller";
    const Finished refused = Program::run(command + Words{"4097"});
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.err, HasSubstr("4097 ranks: at most 4096 are supported"));
  }
}

Words no_shard() { return Words{"--strategy", "no_shard"} + ranks(2); }

// A part of the run's peak, as bytes.
std::string part_of_peak(const Words& command, double part) {
  const auto bytes = static_cast<double>(peak(parsed(command + Words{"--json"})));
  return std::to_string(static_cast<int64_t>(part * bytes));
}

std::string first_lines(const std::string& text) { return text.substr(0, 2000); }

int lines_of(const std::string& text) { return static_cast<int>(std::ranges::count(text, '\n')); }

// Every printed command, typed again, has the promised peak.
void expect_promises_kept(const Json& answer) {
  ASSERT_FALSE(answer.at("runs").empty());
  for (const Json& run : answer.at("runs")) {
    auto words = shell_words(run.at("command").get<std::string>());
    ASSERT_TRUE(words.ok());
    const size_t bytes = peak(parsed(*words + Words{"--json"}));
    EXPECT_EQ(bytes, run.at("peak_bytes")) << run.at("command");
    EXPECT_LE(bytes, answer.at("fit_bytes")) << run.at("command");
  }
}

std::pair<int, size_t> order_of(const Json& run) {
  const std::vector<std::string> effects = {"same bits", "rounding", "fewer bits", "other batch"};
  const auto at = std::ranges::find(effects, run.at("weights").get<std::string>());
  return {run.at("changes").get<int>(), static_cast<size_t>(at - effects.begin())};
}

TEST(PlanFit, WhatIsPrintedFitsAsPromisedTheSmallestChangeFirst) {
  for (const double part : {0.9, 0.5, 0.1}) {
    const Words command = gpt_plan() + no_shard();
    const Words fit{"--fit", part_of_peak(command, part)};
    const Json answer = parsed(command + fit + Words{"--json"});
    expect_promises_kept(answer);
    EXPECT_LE(answer.at("plans"), 100);
    const Json& runs = answer.at("runs");
    EXPECT_TRUE(std::ranges::is_sorted(runs, {}, order_of)) << runs;
    const std::string text = done(command + fit).out;
    EXPECT_LE(lines_of(text), kMostLines) << text;
    EXPECT_THAT(text, HasSubstr(runs[0].at("weights").get<std::string>()));
  }
}

TEST(PlanFit, RanksBatchesAndTypesAreTriedToo) {
  const Words command = gpt_plan() + Words{"--strategy", "full_shard", "--world", "4"};
  const Json answer = parsed(command + Words{"--json", "--fit", part_of_peak(command, 0.7)});
  expect_promises_kept(answer);
  std::string flags;
  for (const Json& run : answer.at("runs")) flags += run.at("command").get<std::string>() + "\n";
  for (const char* flag : {"--world 8 ", "--grad-accum 2"}) EXPECT_THAT(flags, HasSubstr(flag));
}

// A topology decides the number of ranks; units are gathered there.
TEST(PlanFit, BetweenHosts) {
  const TempFolder folder;
  const std::string topology =
      folder.write("t.yaml",
                   "hosts: 2\nranks_per_host: 2\ninside: {alpha_us: 3, beta_gbs: 100}\n"
                   "between: {alpha_us: 10, beta_gbs: 20}\n");
  const Words command =
      gpt_plan() + Words{"--strategy", "zero1", "--world", "4", "--topology", topology};
  const Json answer = parsed(command + Words{"--json", "--fit", part_of_peak(command, 0.8)});
  expect_promises_kept(answer);
  EXPECT_THAT(answer.dump(), testing::Not(HasSubstr("--world 8")));
}

TEST(PlanFit, SaysThatTheRunFitsOrThatNothingDoes) {
  const Words command = mlp_plan() + no_shard();
  EXPECT_THAT(done(command + Words{"--fit", "1TiB"}).out, HasSubstr("; it fits 1TiB\n"));
  const Finished none = Program::run(command + Words{"--fit", "1KiB"});
  EXPECT_EQ(none.status, 2);
  EXPECT_EQ(lines_of(none.err), 1) << none.err;
  EXPECT_THAT(none.err, HasSubstr("fsdp-run: --fit 1KiB: expected a change"));
  const Finished wrong = Program::run(command + Words{"--fit", "much"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--fit: expected bytes such as 24GiB, found 'much'"));
}

// A change that promises the same bits keeps them.
TEST(PlanFit, SameBitsAreTheSameBits) {
  const TempFolder folder;
  int compared = 0;
  for (const char* strategy : {"no_shard", "full_shard"}) {
    const Words command = gpt_plan() + Words{"--strategy", strategy} + ranks(2);
    const Json answer = parsed(command + Words{"--json", "--fit", part_of_peak(command, 0.9)});
    const auto trained = [&](const Words& flags) {
      const std::string output = folder.path() + "/trained.onnx";
      Words words = command + Words{"--steps", "1", "--output", output} + flags;
      std::erase(words, "plan");
      done(words);
      return onnx_bytes::content(output);
    };
    const std::string plain = trained({});
    for (const Json& run : answer.at("runs")) {
      if (run.at("weights") != "same bits") continue;
      EXPECT_EQ(trained(run.at("flags").get<Words>()), plain) << run.at("flags");
      ++compared;
    }
  }
  EXPECT_GE(compared, 2);
}

TEST(PlanCompare, ShowsBothPlansWithTheirOwnFigures) {
  const TempFolder folder;
  const std::string a = folder.write("a.yaml", "strategy: no_shard\nnum_processes: 4\n");
  const std::string b = folder.write(
      "b.yaml", "strategy: full_shard\nnum_processes: 2\nactivation_checkpointing: unit\n");
  const Json both = parsed(mlp_plan() + Words{"--compare", a, b, "--json"});
  ASSERT_EQ(both.at("plans").size(), 2u);
  for (const auto& [file, side] : {std::pair(a, both.at("plans")[0]), {b, both.at("plans")[1]}}) {
    const Json alone = parsed(mlp_plan() + Words{"--config", file, "--json"});
    EXPECT_EQ(side.at("memory"), alone.at("memory")) << file;
    EXPECT_EQ(side.at("units").size(), alone.at("units").size()) << file;
    EXPECT_EQ(side.at("world"), alone.at("world")) << file;
    EXPECT_GT(side.at("received_bytes"), 0) << file;
  }
  const std::string text = done(mlp_plan() + Words{"--compare", a, b}).out;
  EXPECT_LE(lines_of(text), kMostLines) << text;
  for (const char* word : {"a.yaml", "b.yaml", "no_shard", "full_shard", "peak of a rank",
                           "received in an update", "predicted for an update"}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
}

// no_shard: all ranks' gradients in two rings, 2 (n - 1)/n of the unit. full_shard on one host:
// each rank reads the other ranks' parts for its shard.
TEST(PlanCompare, CountsTheBytesThatARankReceives) {
  const TempFolder folder;
  const std::string a = folder.write("a.yaml", "strategy: no_shard\n");
  const std::string b = folder.write("b.yaml", "strategy: full_shard\n");
  const Json both = parsed(mlp_plan() + ranks(4) + Words{"--compare", a, b, "--json"});
  for (const size_t side : {0, 1}) {
    const Json& plan = both.at("plans")[side];
    int64_t padded = 0;
    for (const Json& unit : plan.at("units")) padded += unit.at("padded_numel").get<int64_t>();
    const int64_t parts = side == 0 ? 2 : 1;  // three quarters each
    EXPECT_EQ(plan.at("received_bytes"), parts * padded * 4 * 3 / 4) << side;
  }
}

TEST(PlanCompare, WrongFilesAreRefused) {
  const TempFolder folder;
  const std::string a = folder.write("a.yaml", "strategy: no_shard\n");
  const auto refused = [&](const Words& words, const std::string& line) {
    const Finished run = Program::run(mlp_plan() + words);
    EXPECT_EQ(run.status, 2) << first_lines(run.out);
    EXPECT_EQ(lines_of(run.err), 1) << run.err;
    EXPECT_THAT(run.err, HasSubstr(line));
  };
  refused({"--compare", a}, "--compare: expected two files, found one: '" + a + "'");
  refused({"--compare", a, folder.path() + "/none.yaml"}, "none.yaml");
  refused({"--compare", a, folder.write("b.yaml", "strategy: some\n")}, "b.yaml");
  refused({"--compare", a, a, "--config", a}, "--compare with --config");
}

}  // namespace plan_choices_test
}  // namespace ofsdp
