// fsdp-run config: the answers become a file that runs at once; with lines and with arrow keys. The
// terminal is as it was before, whatever ends the program.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/cli/command_line.h"
#include "runtime/cli/config/config_files.h"
#include "runtime/cli/options/option_table.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace config_questions_test {

using testing::HasSubstr;

Options parsed(const Words& words) {
  Result<ParsedCommand> command = parse_command(words, std::nullopt);
  EXPECT_TRUE(command.ok()) << (command.ok() ? "" : command.error().message());
  return command.ok() ? command->options : Options();
}

class ConfigQuestions : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  // The options from these answers, read back from the file.
  Options answered(const std::string& lines, const Words& flags = {}) {
    std::istringstream in(lines);
    const Options given = parsed(Words{"config", "-o", at("c.yaml")} + flags);
    const Status status = ask_configuration(given, in, /*terminal=*/false);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
    return parsed({"m.onnx", "--config", at("c.yaml")});
  }
  std::string refused(const std::string& lines) {
    std::istringstream in(lines);
    const Status status = ask_configuration(parsed({"config", "-o", at("c.yaml")}), in, false);
    return status.ok() ? "accepted" : status.message();
  }

  testing_data::TempFolder folder_;
};

TEST_F(ConfigQuestions, EmptyLinesAndTheEndTakeTheDefaults) {
  const std::string defaults = describe(parsed({"m.onnx"}));
  EXPECT_EQ(describe(answered("")), defaults);
  EXPECT_EQ(describe(answered(std::string(40, '\n'))), defaults);
}

// A kept default is a comment, not a key: a key would overrule MODEL.yaml, as `loss: auto` did.
TEST_F(ConfigQuestions, KeptDefaultsAreCommentsAndTheFileRuns) {
  std::filesystem::copy_file(fixture("mlp/model.onnx"), at("m.onnx"));
  std::ofstream(at("m.yaml")) << "loss: cross_entropy\ndata: " << fixture("mlp/data") << "\n";
  const Finished asked =
      Program::run({"/bin/sh", "-c", "printf '2\\n' | \"$0\" config \"$1\" -o \"$2\"",
                    OFSDP_FSDP_RUN, at("m.onnx"), at("c.yaml")});
  EXPECT_EQ(asked.status, 0) << asked.err;
  EXPECT_THAT(asked.out, HasSubstr("fsdp-run " + at("m.onnx") + " --config " + at("c.yaml")));
  const std::string text = onnx_bytes::content(at("c.yaml"));
  EXPECT_THAT(text, HasSubstr("\nnproc_per_node: 2  # "));
  EXPECT_THAT(text, HasSubstr("\nloss: cross_entropy  # "));
  EXPECT_THAT(text, HasSubstr("\n# output: none  # "));
  const Finished run =
      Program::run(fsdp_run({at("m.onnx"), "--config", at("c.yaml"), "--steps", "1"}));
  EXPECT_EQ(run.status, 0) << run.err;
  const Finished none = Program::run(fsdp_run({"config", at("absent.onnx"), "-o", at("d.yaml")}));
  EXPECT_EQ(none.status, 2);
}

TEST_F(ConfigQuestions, NumbersAndNamesAreAnswers) {
  const Options options =
      answered("2\nzero1\n2\n5000\n2\n\n3\n1GiB\n\ncross_entropy\n3\n0.5\n\n4\n10\n1.5\n4\n2\n3\n");
  EXPECT_EQ(options.launch.nproc_per_node, 2);
  EXPECT_EQ(options.sharding.strategy, Strategy::kZero1);
  EXPECT_EQ(options.sharding.wrap, WrapPolicy::kSize);
  EXPECT_EQ(options.sharding.min_params, 5000);
  EXPECT_EQ(options.sharding.param_dtype, DType::kBFloat16);
  EXPECT_EQ(options.sharding.reduce_dtype, DType::kFloat32);
  EXPECT_EQ(options.sharding.activation_checkpointing, Recompute::kAuto);
  EXPECT_EQ(options.sharding.memory_limit, 1 << 30);
  EXPECT_EQ(options.losses[0].kind, LossKind::kCrossEntropy);
  EXPECT_EQ(options.optimizer.kind, OptimizerKind::kSgd);
  EXPECT_EQ(options.optimizer.lr, 0.5);
  EXPECT_EQ(options.schedule.kind, ScheduleKind::kCosine);
  EXPECT_EQ(options.schedule.warmup_steps, 10);
  EXPECT_EQ(options.optimizer.clip_grad_norm, 1.5);
  EXPECT_EQ(options.batch.batch_size.value, 4);
  EXPECT_EQ(options.batch.grad_accum.value, 2);
  EXPECT_EQ(options.run.epochs, 3);
}

TEST_F(ConfigQuestions, AWrongAnswerIsAskedAgain) {
  EXPECT_EQ(answered("none\n0\n2\n").launch.nproc_per_node, 2);
  EXPECT_EQ(
      refused("none"),
      "config: nproc-per-node: expected auto, gpu, cpu or a whole number from 1 to 4096, found "
      "'none'");
  EXPECT_FALSE(std::filesystem::exists(at("d.yaml")));
}

TEST_F(ConfigQuestions, FlagsAreTheDefaults) {
  const Options options =
      answered("", {"--strategy", "zero1", "--seed", "7", "--optimizer", "lion"});
  EXPECT_EQ(options.sharding.strategy, Strategy::kZero1);
  EXPECT_EQ(options.run.seed, 7u);
  EXPECT_EQ(options.optimizer.kind, OptimizerKind::kLion);
  EXPECT_EQ(options.optimizer.lr, 1e-4);
}

TEST_F(ConfigQuestions, AnotherOptimizerHasItsOwnDefaults) {
  EXPECT_EQ(answered("\n\n\n\n\n\n\n\n\nadadelta\n").optimizer.lr, 1);
}

TEST_F(ConfigQuestions, PathsMeanTheSameFromWhereTheFileLies) {
  const Options options = answered("\n\n\n\n\n\n\nsome/data\n");
  EXPECT_EQ(options.run.data.path, std::filesystem::absolute("some/data").string());
}

// A program on a separate terminal.
class OnTerminal {
 public:
  explicit OnTerminal(Words words) {
    pid_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  ~OnTerminal() {
    if (!waited_) kill(pid_, SIGKILL), end();
    close(terminal_);
  }

  // Reads until new output ends with this text.
  void expect(const std::string& text) {
    std::string found;
    while (found.find(text) == std::string::npos) {
      pollfd source{terminal_, POLLIN, 0};
      char bytes[512];
      const bool more = poll(&source, 1, 20'000) == 1;
      const ssize_t count = more ? read(terminal_, bytes, sizeof bytes) : 0;
      ASSERT_GT(count, 0) << "expected " << text << ", found " << found;
      found.append(bytes, static_cast<size_t>(count));
    }
  }
  void type(const std::string& keys) const {
    ASSERT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  bool is_raw() const {
    termios now{};
    tcgetattr(terminal_, &now);
    return (now.c_lflag & (ICANON | ECHO | ISIG)) == 0;
  }
  bool is_plain() const {
    termios now{};
    tcgetattr(terminal_, &now);
    return (now.c_lflag & ICANON) != 0 && (now.c_lflag & ECHO) != 0 && (now.c_lflag & ISIG) != 0;
  }
  void signal(int number) const { kill(pid_, number); }
  int end() {
    int status = 0;
    waitpid(pid_, &status, 0);
    waited_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  int terminal_ = -1;
  pid_t pid_ = -1;
  bool waited_ = false;
};

TEST_F(ConfigQuestions, ArrowKeysChooseAndTheFileRuns) {
  const std::string file = at("keys.yaml");
  OnTerminal program(fsdp_run({"config", "-o", file, "--epochs", "1", "--wrap", "size"}));
  program.expect("How many ranks");
  program.type("2\n");
  program.expect("auto\r\n");
  EXPECT_TRUE(program.is_raw());
  program.type("\x1b[B\x1b[B\x1b[A\n");  // the second
  program.expect("none\r\n");
  program.type("\n");
  program.expect("Fewest");
  EXPECT_TRUE(program.is_plain());
  program.type("1000\n");
  program.expect("float16\r\n");
  program.type("\n");
  program.expect("auto\r\n");
  program.type("\n");
  program.expect("Most memory");
  program.type("\n");
  program.expect("training data");
  program.type(fixture("mlp/data") + "\n");
  program.expect("bce_with_logits\r\n");
  program.type("j\n");
  program.expect("adamw");
  program.type("\n");
  program.expect("Learning rate");
  program.type("\n");
  program.expect("Weight decay");
  program.type("\n");
  program.expect("polynomial\r\n");
  program.type("\n");
  for (const char* question :
       {"Largest norm", "Samples", "Forwards", "epochs", "checkpoints", "ONNX file"}) {
    program.expect(question);
    program.type("\n");
  }
  program.expect("wrote ");
  EXPECT_EQ(program.end(), 0);
  const Options options = parsed({"m.onnx", "--config", file});
  EXPECT_EQ(options.sharding.strategy, Strategy::kShardGradOp);
  EXPECT_EQ(options.losses[0].kind, LossKind::kCrossEntropy);
  const Finished run = Program::run(fsdp_run({fixture("mlp/model.onnx"), "--config", file}));
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("shard_grad_op, 2 ranks"));
}

TEST_F(ConfigQuestions, TheTerminalIsPutBack) {
  for (const int signal : {0, SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    const std::string file = at("ended.yaml");
    OnTerminal program(fsdp_run({"config", "-o", file}));
    program.expect("How many ranks");
    program.type("\n");
    program.expect("auto\r\n");
    EXPECT_TRUE(program.is_raw());
    if (signal == 0) program.type("\x03");
    if (signal != 0) program.signal(signal);
    EXPECT_EQ(program.end(), signal == 0 ? 2 : 128 + signal);
    EXPECT_TRUE(program.is_plain()) << signal;
    EXPECT_FALSE(std::filesystem::exists(file));
  }
}

}  // namespace config_questions_test
}  // namespace ofsdp
