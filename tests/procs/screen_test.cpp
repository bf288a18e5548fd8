// Tests the screen: short before the first step, one line while it trains, a block at the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace screen_test {

using testing::HasSubstr;
using testing::Not;

constexpr size_t kMaxLines = 24;
constexpr const char* kInPlace = "\r\x1b[K";
constexpr const char* kGreen = "\x1b[32m";

size_t lines_before_the_first_step(const std::string& out) {
  const size_t step = out.find("\nepoch 1  step 1");
  EXPECT_NE(step, std::string::npos) << out;
  return lines_of(out.substr(0, step)).size();
}

class Screen : public testing::TestWithParam<Words> {};

const Words kClasses{"--loss", "cross_entropy"};

INSTANTIATE_TEST_SUITE_P(
    Fixtures, Screen,
    testing::Values(Words{"mlp/model.onnx"} + kClasses, Words{"bert_tiny/model.onnx"} + kClasses,
                    Words{"gpt2_tiny/model.onnx"} + kClasses, Words{"blocks/model.onnx"} + kClasses,
                    Words{"dropout/model.onnx"} + kClasses, Words{"norms/model.onnx"} + kClasses,
                    Words{"fused/fused.onnx"} + kClasses, Words{"variety/images.onnx"} + kClasses,
                    Words{"variety/masks.onnx"} + kClasses,
                    Words{"variety/sequences.onnx"} + kClasses,
                    Words{"quantized/pairs/model.onnx"} + kClasses,
                    Words{"training_info/adam.onnx"}, Words{"artifacts/mlp_sgd"}));

TEST_P(Screen, HasAtMost24LinesBeforeTheFirstStepAndNoEscapeCodesInAPipe) {
  Words words = GetParam();
  words[0] = fixture(words[0]);
  const Finished run = Program::run(
      fsdp_run(words + Words{"--data", "synthetic", "--eval-data", "none", "--steps", "1"}));
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_LE(lines_before_the_first_step(run.out), kMaxLines) << run.out;
  EXPECT_THAT(run.out, HasSubstr(" trains "));
  EXPECT_THAT(run.out, HasSubstr("\ndone: 1 update in "));
  for (const char code : {'\x1b', '\r'}) EXPECT_EQ(run.out.find(code), std::string::npos);
}

Words small() {
  return fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--steps", "12"});
}

// Every setting that can be changed together, and long values.
TEST(ScreenTest, ManySettingsAndRanksAreStillAtMost24Lines) {
  const testing_data::TempFolder folder;
  Words words = small() + ranks(2) + Words{"--min-params", "1", "--wrap", "size", "--seed", "3"};
  for (int i = 0; i < 40; ++i) {
    words.insert(words.end(), {"--group", format_text("fc{}.*:lr={}", 1 + i % 2, 1 + i)});
    words.insert(words.end(), {"--no-decay", "*.bias"});
  }
  for (const char* option : {"--warmup-steps=3",
                             "--clip-grad-norm=1",
                             "--ema=0.9",
                             "--lr-schedule=cosine",
                             "--lr=0.01",
                             "--param-dtype=bfloat16",
                             "--cpu-offload=params",
                             "--matmul-precision=high",
                             "--deterministic=across_ranks",
                             "--checkpoint-sync",
                             "--keep-checkpoints=3",
                             "--forward-prefetch=off",
                             "--backward-prefetch=none",
                             "--drop-last",
                             "--no-shuffle",
                             "--label-smoothing=0.1",
                             "--eval-data=none",
                             "--weight-decay=0.1",
                             "--eps=1e-7",
                             "--betas=0.8,0.9",
                             "--timeout=100",
                             "--threads=1",
                             "--global-batch-size=8"}) {
    words.push_back(option);
  }
  const std::string file = folder.path() + "/" + std::string(90, 'f');
  words = words + Words{"--output", file + ".onnx",     "--metrics",
                        file,       "--checkpoint-dir", folder.path() + "/checkpoints"};
  const Finished run = Program::run(words);
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_LE(lines_before_the_first_step(run.out), kMaxLines) << run.out;
  EXPECT_THAT(run.out, HasSubstr(" more (--verbose)\n"));
  for (const char* written : {".onnx\n", " (metrics)\n", " (checkpoints)\n"}) {
    EXPECT_THAT(run.out, HasSubstr(written));
  }
}

TEST(ScreenTest, VerboseAndPlanPrintTheTables) {
  Words plan = small();
  plan.insert(plan.begin() + 1, {"plan", "--verbose"});
  for (const Words& words : {small() + Words{"--verbose", "on"}, plan}) {
    const Finished run = Program::run(words + Words{"--freeze", "fc1.*"});
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("\nmin_params: 100000\n"));
    EXPECT_THAT(run.out, HasSubstr("train   head.weight  [5, 48]                      240\n"));
    EXPECT_THAT(run.out, HasSubstr("keep    fc1.bias     [64]                          64  ("));
    EXPECT_THAT(run.out, HasSubstr("\npeak, in whole pages"));
  }
}

struct TerminalRun {
  unsigned short columns = 200;
  Words environment = {};
  std::string folder = "/";
};

// Runs it with the output on a pseudo-terminal.
std::string on_a_terminal(const Words& words, const TerminalRun& how) {
  int terminal = -1;
  winsize size{.ws_row = 50, .ws_col = how.columns, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    for (const std::string& variable : how.environment) {
      const size_t equals = variable.find('=');
      setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
    }
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    if (chdir(how.folder.c_str()) == 0) execv(arguments[0], arguments.data());
    _exit(127);
  }
  std::string text(1 << 16, '\0');
  size_t length = 0;
  for (ssize_t got; (got = read(terminal, text.data() + length, text.size() - length)) > 0;) {
    length += static_cast<size_t>(got);
  }
  text.resize(length);
  int status = 0;
  waitpid(child, &status, 0);
  close(terminal);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text;
  return text;
}

TEST(ScreenTest, ATerminalHasOneLineInPlaceAndColoursUnlessNoColor) {
  const Words words = small() + ranks(2) + Words{"--eval-data", fixture("mlp/data")};
  const std::string coloured = on_a_terminal(words, {}),
                    plain = on_a_terminal(words, {.environment = {"NO_COLOR=1"}});
  for (const std::string& text : {coloured, plain}) {
    EXPECT_THAT(text, HasSubstr(kInPlace));
    EXPECT_THAT(text, HasSubstr("12/12  loss "));
    EXPECT_THAT(text, HasSubstr(" KiB"));
    EXPECT_THAT(text, HasSubstr("done: 12 updates in "));
  }
  EXPECT_THAT(coloured, HasSubstr(kGreen));
  EXPECT_THAT(plain, Not(HasSubstr("m["))) << "colours";
  EXPECT_EQ(plain.find("\x1b[3"), std::string::npos);
  EXPECT_EQ(plain.find("\x1b[1m"), std::string::npos);
}

// The text as a terminal shows it, line by line, with every state of a line that is redrawn.
std::vector<std::string> shown_lines(const std::string& text) {
  std::string plain = std::regex_replace(text, std::regex("\x1b\\[[0-9]*[mK]"), "");
  std::ranges::replace(plain, '\r', '\n');
  std::vector<std::string> lines = lines_of(plain);
  std::erase(lines, "");
  return lines;
}

// Numbers, and the full part of a bar, depend on the machine and the time.
std::string shape_of(const std::string& line) {
  const std::string bars = std::regex_replace(line, std::regex("\\[=*>? *\\]"), "[...]");
  return std::regex_replace(bars, std::regex("[0-9]([0-9.,:]*[0-9])?"), "#");
}

struct ScreenCase {
  unsigned short columns;
  std::string opening, bar;
};

// Memory shares and the rate depend on the processor.
TEST(ScreenTest, TheScreenAt60And80And120Columns) {
  const std::string wide =
      "model: model.onnx, trains # numbers in # of # tensors\n"
      "data: data, # rows, # batches of # an epoch; no evaluation\n"
      "loss: the mean over the labels of 'labels'\n"
      "settings: threads #, device cpu, loss cross_entropy, steps #, eval-data none\n"
      "memory: # KiB a rank: ";
  for (const ScreenCase& at :
       {ScreenCase{60,
                   "model: model.onnx, trains # numbers in # of # tensors\n"
                   "data: data, # rows, # batches of # an epoch;\n"
                   "  no evaluation\n"
                   "loss: the mean over the labels of 'labels'\n"
                   "settings: threads #, device cpu, loss cross_entropy,\n"
                   "          steps #, eval-data none\n"
                   "memory: # KiB a rank: ",
                   "#/#  loss #  # samples/s  # KiB  eta #\n"},
        ScreenCase{80, wide, "epoch #  [...] #/#  loss #  # samples/s  # KiB  eta #\n"},
        ScreenCase{120, wide, "epoch #  [...] #/#  loss #  lr #  # samples/s  # KiB  eta #\n"}}) {
    const Words words = fsdp_run({"model.onnx", "--loss", "cross_entropy", "--steps", "12",
                                  "--eval-data", "none", "--threads", "1", "--device", "cpu"});
    std::string all;
    for (const std::string& line :
         shown_lines(on_a_terminal(words, {.columns = at.columns, .folder = fixture("mlp")}))) {
      EXPECT_LE(line.size(), at.columns) << line;
      all += shape_of(line) + "\n";
    }
    EXPECT_THAT(all, testing::StartsWith(at.opening));
    EXPECT_THAT(all, HasSubstr("\ndevice: CPU; full_shard, # rank, # thread each\n"
                               "writes: nothing (--output FILE.onnx keeps the trained model)\n"));
    EXPECT_THAT(all, HasSubstr(at.bar));
    EXPECT_THAT(all, HasSubstr("\ndone: # updates in "));
  }
}

// mpirun gives the ranks a terminal and writes into a file.
TEST(ScreenTest, NoEscapeCodesWhereAnotherProgramStartsTheRanks) {
  for (const Words& environment :
       {Words{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"}, Words{"PMIX_RANK=0"},
        Words{"SLURM_PROCID=0"}, Words{"TORCHELASTIC_RUN_ID=a"}}) {
    std::string text = on_a_terminal(small(), {.environment = environment});
    EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
    EXPECT_THAT(text, HasSubstr("\nepoch 1  step 1/12  loss "));
    EXPECT_THAT(text, HasSubstr("\nepoch 1  step 12/12  loss "));
  }
  const Words mpirun{"/usr/bin/mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n",
                     "2"};
  if (access(mpirun[0].c_str(), X_OK) != 0) return;
  const std::string text = on_a_terminal(mpirun + small(), {});
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  EXPECT_THAT(text, HasSubstr("epoch 1  step 12/12  loss "));
}

TEST(ScreenTest, NoEscapeCodesInAFileAndLinesByTimeOrByCount) {
  const Finished by_time = Program::run(small()),
                 by_count = Program::run(small() + Words{"--log-interval", "5"});
  for (const Finished& run : {by_time, by_count}) {
    ASSERT_EQ(run.status, 0) << run.err;
    for (const char code : {'\x1b', '\r'}) EXPECT_EQ(run.out.find(code), std::string::npos);
    EXPECT_THAT(run.out, HasSubstr("\nepoch 1  step 1/12  loss "));
    EXPECT_THAT(run.out, HasSubstr("\nepoch 1  step 12/12  loss "));
  }
  for (const char* step : {"\nepoch 1  step 5/12  ", "\nepoch 1  step 10/12  "}) {
    EXPECT_THAT(by_count.out, HasSubstr(step));
  }
}

TEST(ScreenTest, WordsOfTheMachineryComeOnlyWithVerbose) {
  const Words words = small() + ranks(2) + Words{"--steps", "2"};
  const Finished plain = Program::run(words), verbose = Program::run(words + Words{"--verbose"});
  for (const char* jargon :
       {"fused: ", "wrap transformer: ", "exposed", "\nwaited ", " unit", "--verbose on"}) {
    EXPECT_THAT(plain.out, Not(HasSubstr(jargon)));
  }
  EXPECT_THAT(plain.out, HasSubstr("\nwaiting for communication: "));
  EXPECT_THAT(plain.out, HasSubstr(" ms per step (median, slowest rank)\n"));
  for (const char* table : {"\nwrap transformer: ", "\nunits\n", "\nwaited ",
                            "\nmodel: ", "\ndata: ", ", 1 unit\n", "\nwrites: nothing "}) {
    EXPECT_THAT(verbose.out, HasSubstr(table));
  }
}

TEST(ScreenTest, QuietPrintsTheResultAndWarnings) {
  const testing_data::TempFolder folder;
  const std::string file = folder.path() + "/t.onnx";
  const Words words = small() + ranks(2) + Words{"--quiet",  "--eval-data", fixture("mlp/data"),
                                                 "--output", file,          "--keep-checkpoints",
                                                 "5"};
  const Finished run = Program::run(words);
  ASSERT_EQ(run.status, 0) << run.err;
  const std::vector<std::string> lines = lines_of(run.out);
  ASSERT_EQ(lines.size(), 3u) << run.out;
  EXPECT_THAT(lines[0], testing::StartsWith("epoch 1  step 12/12  loss "));
  EXPECT_THAT(lines[1], testing::StartsWith("eval  step 12  loss "));
  EXPECT_EQ(lines[2], "wrote " + file);
  EXPECT_THAT(run.err, HasSubstr("warning: without --checkpoint-dir nothing is saved"));
  const Finished eval =
      Program::run(fsdp_run({"eval", fixture("mlp/model.onnx"), "--loss", "cross_entropy",
                             "--eval-data", fixture("mlp/data"), "--quiet"}));
  EXPECT_EQ(lines_of(eval.out).size(), 1u) << eval.out;
  EXPECT_THAT(eval.out, testing::StartsWith("eval  loss "));
}

using Json = nlohmann::json;

Json object_of(const Words& words) {
  const Finished run = Program::run(words + Words{"--json"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(lines_of(run.out).size(), 1u) << run.out;
  return Json::parse(run.out, nullptr, false);
}

// Several ranks: only rank 0's object.
TEST(ScreenTest, JsonIsTheResultOfATrainingRunAndNothingElse) {
  const testing_data::TempFolder folder;
  const std::string file = folder.path() + "/t.onnx", metrics = folder.path() + "/m.jsonl";
  const Json run = object_of(small() + ranks(2) +
                             Words{"--eval-data", fixture("mlp/data"), "--output", file,
                                   "--metrics", metrics, "--batch-size", "12"});
  EXPECT_EQ(run["updates"], 12);
  EXPECT_EQ(run["epochs"], 1.5);  // 192 rows in batches of 24
  EXPECT_GT(run["loss"], 0);
  EXPECT_GT(run["eval"]["loss"], 0);
  EXPECT_GT(run["eval"]["accuracy"], 0);
  EXPECT_GT(run["samples_per_s"], 0);
  EXPECT_GT(run["peak_bytes"], 0);
  EXPECT_GT(run["seconds"], 0);
  EXPECT_EQ(run["stopped"], false);
  EXPECT_EQ(run["files"], (Json{{"model", file}, {"metrics", metrics}}));
  EXPECT_EQ(object_of(small() + Words{"--eval-data", "none"})["eval"], Json());
}

TEST(ScreenTest, JsonOfAnEvaluation) {
  const Words words = fsdp_run({"eval", fixture("mlp/model.onnx"), "--loss", "cross_entropy",
                                "--eval-data", fixture("mlp/data")});
  for (const int count : {1, 2}) {
    const Json eval = object_of(words + ranks(count));
    EXPECT_EQ(eval["samples"], 192);
    EXPECT_GT(eval["loss"], 0);
    EXPECT_GT(eval["metrics"]["accuracy"], 0);
  }
}

TEST(ScreenTest, JsonOfARunThatASignalStops) {
  const testing_data::TempFolder folder;
  const std::string metrics = folder.path() + "/m.jsonl", saved = folder.path() + "/saved";
  Program program(small() + Words{"--steps", "100000000", "--checkpoint-dir", saved, "--metrics",
                                  metrics, "--json"});
  ASSERT_TRUE(holds_within(20, [&] {
    std::error_code missing;
    return std::filesystem::file_size(metrics, missing) > 1000 && !missing;
  }));
  program.signal(SIGTERM);
  const Finished run = program.wait(30);
  EXPECT_EQ(lines_of(run.out).size(), 1u) << run.out;
  const Json object = Json::parse(run.out, nullptr, false);
  EXPECT_EQ(object["stopped"], true);
  EXPECT_GT(object["updates"], 0);
  EXPECT_EQ(object["files"]["checkpoints"], saved);
}

// With an error stdout is empty; a fault's tables go to stderr.
TEST(ScreenTest, JsonOfARunThatFailsIsNothing) {
  const Finished run = Program::run(small() + Words{"--json", "--lr", "1e30"});
  EXPECT_NE(run.status, 0);
  EXPECT_EQ(run.out, "");
  EXPECT_NE(run.err, "");
}

// A warning is shown however short the screen is.
TEST(ScreenTest, AWarningIsAlwaysShown) {
  const Finished run = Program::run(small() + Words{"--keep-checkpoints", "5"});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.err, HasSubstr("warning: without --checkpoint-dir nothing is saved"));
}

}  // namespace screen_test
}  // namespace ofsdp
