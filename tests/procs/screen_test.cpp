// Tests the screen: short before the first step, one line while it trains, a block at the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

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
  EXPECT_THAT(run.out, HasSubstr(" more (--verbose on)\n"));
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

// Runs it with its output on a pseudo-terminal.
std::string on_a_terminal(const Words& words, bool no_color) {
  int terminal = -1;
  winsize size{.ws_row = 50, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    setenv("TERM", "xterm", 1);
    no_color ? setenv("NO_COLOR", "1", 1) : unsetenv("NO_COLOR");
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
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
  const Words words = small() + Words{"--eval-data", fixture("mlp/data")};
  const std::string coloured = on_a_terminal(words, false), plain = on_a_terminal(words, true);
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

// Whatever else is short.
TEST(ScreenTest, AWarningIsAlwaysShown) {
  const Finished run = Program::run(small() + Words{"--keep-checkpoints", "5"});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.err, HasSubstr("warning: without --checkpoint-dir nothing is saved"));
}

}  // namespace screen_test
}  // namespace ofsdp
