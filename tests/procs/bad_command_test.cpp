// Wrong commands: batches that do not divide, options that do not exist, places where nothing can
// be written. All are found before the first step. tests/procs/device/device_test.cpp tests
// --device cuda without a CUDA library.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace bad_command_test {

using namespace onnx_bytes;

TEST(BadCommandTest, ABatchThatDoesNotDivide) {
  const ModelFolder folder;
  const Words train =
      fsdp_run({folder.model(), "--loss", "cross_entropy", "--output", folder.output()});
  expect_refused(folder, train + Words{"--global-batch-size", "25"},
                 {"--global-batch-size 25", "2 ranks"}, {.one_rank = false});
  expect_refused(folder, train + Words{"--global-batch-size", "12", "--grad-accum", "5"},
                 {"--global-batch-size 12", "--grad-accum 5"});
  expect_refused(
      folder, train + Words{"--global-batch-size", "12", "--grad-accum", "4", "--batch-size", "2"},
      {"--global-batch-size is 12", "--batch-size 2", "--grad-accum 4"});
}

TEST(BadCommandTest, MetricsThatCannotBe) {
  const ModelFolder folder;
  const Words train =
      fsdp_run({folder.model(), "--loss", "cross_entropy", "--output", folder.output()});
  expect_refused(folder, train + Words{"--eval-metrics", "top9"},
                 {"--eval-metrics top9", "classes"});
  expect_refused(folder, train + Words{"--eval-metrics", "rmse"},
                 {"--eval-metrics rmse", "numbers"});
  expect_refused(folder, train + Words{"--eval-metrics", "acuracy"},
                 {"--eval-metrics", "did you mean 'accuracy'"});
  expect_refused(folder, train + Words{"--early-stop", "2"}, {"--early-stop", "--eval-data"});
  expect_refused(folder, train + Words{"--log", "comet:x"}, {"--log", "wandb:FOLDER"});
}

TEST(BadCommandTest, ABatchThatTheGraphCannotTake) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.inputs = {declared("x", {6, 4})};
  model.outputs = {declared("logits", {6, 3})};
  folder.write("model.onnx", model.bytes());
  expect_refused(folder, {"--batch-size 2", folder.model(), "fixed at 6"});
  const Words train = fsdp_run({folder.model(), "--loss", "cross_entropy"});
  expect_refused(folder, train + Words{"--global-batch-size", "24", "--grad-accum", "12"},
                 {"--batch-size", folder.model(), "fixed at 6"});
  expect_refused(folder, train + ranks(2) + Words{"--batch-weights", "2,1"},
                 {"--batch-weights", folder.model(), "fixed at 6"});
  EXPECT_EQ(Program::run(train).status, 0);  // 12 samples: two batches
}

// The graph takes only batches of 5, and twelve samples are no multiple of 5.
TEST(BadCommandTest, AShortLastBatchThatTheGraphCannotTake) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.inputs = {declared("x", {5, 4})};
  model.outputs = {declared("logits", {5, 3})};
  folder.write("model.onnx", model.bytes());
  const Words train = fsdp_run({folder.model(), "--loss", "cross_entropy"});
  expect_refused(folder, train,
                 {"training data: 12 samples", folder.model(), "fixed at 5",
                  "--drop-last leaves it out, --free-batch takes any batch"});
  EXPECT_EQ(Program::run(train + Words{"--drop-last"}).status, 0);
  // An evaluation takes all rows.
  const Words eval = fsdp_run({"eval", folder.model(), "--loss", "cross_entropy"});
  for (const Words& words : {eval, eval + Words{"--drop-last"},
                             train + Words{"--drop-last", "--eval-data", folder / "data"}}) {
    expect_refused(folder, words,
                   {"evaluation data: 12 samples", "(--free-batch takes any batch)"});
  }
  EXPECT_EQ(Program::run(eval + Words{"--free-batch"}).status, 0);
}

TEST(BadCommandTest, APredictionOfTwoDataSets) {
  const ModelFolder folder;
  const Words predict = fsdp_run({"predict", folder.model(), "-o", folder / "p.npy"});
  expect_refused(folder,
                 predict + Words{"--data", folder / "data", "--eval-data", folder / "absent"},
                 {"--eval-data contradicts --data"}, {.one_rank = true});
  EXPECT_EQ(Program::run(predict + Words{"--eval-data", folder / "data"}).status, 0);
}

TEST(BadCommandTest, UnknownOptions) {
  const ModelFolder folder;
  const std::vector<std::pair<Words, Words>> all = {
      {{"--strategie", "full_shard"}, {"--strategie", "--strategy"}},
      {{"--bach-size", "3"}, {"--bach-size", "--batch-size"}},
      {{"--strategy", "fullshard"}, {"--strategy", "'fullshard'", "full_shard"}},
      {{"--optimizer", "adamx"}, {"--optimizer", "'adamx'", "adamw"}},
      {{"--batch-size", "0"}, {"--batch-size", "at least 1", "'0'"}},
      {{"--batch-size", "3.5"}, {"--batch-size", "'3.5'"}},
      {{"--lr", "fast"}, {"--lr", "'fast'"}},
      {{"--nproc-per-node", "-1"}, {"--nproc-per-node", "'-1'"}},
      {{"--momentum", "0.9"}, {"--momentum", "no effect", "adamw"}},
      {{"--lr"}, {"--lr", "expected a value", "nothing"}}};
  for (const auto& [words, facts] : all) {
    const auto before = folder.contents();
    const Finished run = Program::run(folder.train() + ranks(2) + words);
    SCOPED_TRACE(format_text("{}", joined(words, " ")));
    EXPECT_EQ(run.status, 2) << run.err;
    EXPECT_EQ(run.out, "");
    expect_one_line(run.err, facts);
    EXPECT_EQ(names_of(folder.contents()), names_of(before));
  }
}

TEST(BadCommandTest, AnUnknownKeyOfAYamlFile) {
  const ModelFolder folder;
  folder.write("model.yaml", "batch_sise: 3\n");
  expect_refused(folder, {folder / "model.yaml", "batch_sise", "batch_size"});
}

// A stranger may have written the settings file next to the model: these keys are refused there.
TEST(BadCommandTest, KeysThatAModelsOwnFileMayNotHave) {
  const ModelFolder folder;
  for (const char* key : {"plugin", "plugin_override", "make_plugin", "output", "adapter",
                          "metrics", "trace", "log", "report", "checkpoint_dir", "rdzv_endpoint",
                          "nnodes", "hostfile", "include", "exclude", "rsh"}) {
    folder.write("model.yaml", format_text("seed: 1\n{}: on\n", key));
    expect_refused(folder, {folder / "model.yaml", "line 2", key, "--config"});
  }
  folder.write("model.yaml", "seed: 1\n");
  folder.write("named.yaml", "metrics: rows.jsonl\n");
  const Finished run = Program::run(folder.train() + Words{"--config", folder / "named.yaml"});
  EXPECT_EQ(run.status, 0) << run.err;
}

TEST(BadCommandTest, FilesThatRowsAreNotWrittenInto) {
  const ModelFolder folder;
  folder.write("victim", "precious");
  std::filesystem::create_symlink(folder / "victim", folder / "link");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const char* flag : {"--metrics", "--trace"}) {
    for (const std::string& path : {std::string("/dev/null"), folder / "link", folder / "pipe",
                                    folder / "data", folder.model()}) {
      expect_refused(folder, folder.train() + Words{flag, path}, {flag, path, "found"});
    }
  }
  EXPECT_EQ(content(folder / "victim"), "precious");
  for (const std::string& path : {std::string("/dev/null"), folder / "none/r.html"}) {
    expect_refused(folder, folder.train() + Words{"--report", path}, {"--report", path});
  }
}

TEST(BadCommandTest, OutputThatHasNoRoom) {
  const ModelFolder folder;
  for (const char* command :
       {"ops", "--help", "plan model.onnx --loss cross_entropy --data synthetic"}) {
    const std::string said = folder / "said";
    const std::string line = format_text("cd {} && {} {} > /dev/full 2> {}", folder.path(),
                                         OFSDP_FSDP_RUN, command, said);
    const int status = std::system(line.c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << command;
    expect_one_line(onnx_bytes::content(said), {"standard output"});
  }
}

// The line about a full disk has the system's reason, and nothing half-written is left.
TEST(BadCommandTest, PredictionsThatHaveNoRoom) {
  const ModelFolder folder;
  for (const char* name : {"p.csv", "p.npy", "p.npz"}) {
    SCOPED_TRACE(name);
    int full = 0;
    for (int call = 1; call <= 6; ++call) {
      const Finished run = Program::run(
          fsdp_run({"predict", folder.model(), "--data", folder / "data", "-o", folder / name}),
          {.environment = {"LD_PRELOAD=" OFSDP_FAIL_DISK_CALLS, "FAIL_FOLDER=" + folder.path(),
                           format_text("FAIL_CALL={}", call), "FAIL_HOW=on"}});
      if (run.status == 0) break;
      expect_one_line(run.err, {name});
      full += run.err.find("No space left on device") != std::string::npos;
      EXPECT_FALSE(std::filesystem::exists(folder / name));
    }
    EXPECT_GT(full, 0);
    std::filesystem::remove(folder / name);
  }
}

TEST(BadCommandTest, LaunchOptionsThatContradictEachOther) {
  const ModelFolder folder;
  const Words meet = {"--rdzv-endpoint", "127.0.0.1:29400"};
  expect_refused(folder, folder.train() + Words{"--nnodes", "2"},
                 {"--nnodes 2", "--rdzv-endpoint"});
  expect_refused(folder, folder.train() + meet + Words{"--nnodes", "2", "--min-nodes", "3"},
                 {"--min-nodes", "at most 2", "3"});
  expect_refused(folder, folder.train() + meet + Words{"--nnodes", "2", "--node-rank", "2"},
                 {"--node-rank", "0 to 1", "2"});
  expect_refused(folder, folder.train() + Words{"--nnodes", "3:2"}, {"--nnodes", "MIN:MAX", "3:2"});
  expect_refused(folder, folder.train() + Words{"--rdzv-endpoint", "a:b"},
                 {"--rdzv-endpoint", "HOST:PORT", "a:b"});
}

TEST(BadCommandTest, NoModelAndNoCommand) {
  const ModelFolder folder;
  for (const Words& words : {Words{"trian", folder.model()}, Words{"plan"}, Words{"trian"}}) {
    const Finished run = Program::run(fsdp_run(words));
    EXPECT_EQ(run.status, 2) << run.err;
    EXPECT_EQ(run.out, "");
    expect_one_line(run.err, {"MODEL.onnx"});
  }
}

// Words from other programs: the line names our word.
TEST(BadCommandTest, WordsOfOtherPrograms) {
  const ModelFolder folder;
  const std::vector<std::pair<Words, std::string>> all = {
      {{"--jsn"}, "unknown option --jsn; did you mean '--json'?"},
      {{"--lr-scheduler", "cosine"}, "did you mean '--lr-schedule'?"},
      {{"--weight_decay", "0"}, "did you mean '--weight-decay'?"},
      {{"--bs", "3"}, "did you mean '--batch-size'?"},
      {{"--workers", "2"}, "did you mean '--nproc-per-node'?"},
      {{"--epochs-num", "2"}, "did you mean '--epochs'?"},
      {{"--tensorboard", "runs"}, "unknown option --tensorboard; use --log tensorboard:DIR"},
      {{"--wandb"}, "unknown option --wandb; use --log wandb:DIR"},
      {{"--mlflow"}, "unknown option --mlflow; use --log mlflow:DIR"},
      {{"--eval-metrics", "acc"}, "did you mean 'accuracy'?"},
      {{"--strategy", "zero3"}, "did you mean 'full_shard'?"},
      {{"--optimizer", "adamx"}, "did you mean 'adamw'?"},
      {{"--memory-limit", "12"}, "found '12', which is 12 bytes; did you mean 12GiB?"}};
  for (const auto& [words, fact] : all) expect_refused(folder, folder.train() + words, {fact});
}

TEST(BadCommandTest, FilesThatAreNoModel) {
  const ModelFolder folder;
  for (const auto& [name, fact] :
       {std::pair("iris.yaml", "a YAML file: give MODEL.onnx first"),
        std::pair("table.csv", "a table: give MODEL.onnx first"),
        std::pair("train.py", "a Python script: export the model to ONNX")}) {
    expect_refused(folder, fsdp_run({folder.write(name, "x: 1\n")}), {name, fact});
  }
  expect_refused(folder, fsdp_run({folder.model(), "c.yaml"}), {"--config or --data"});
}

TEST(BadCommandTest, DataThatAreNotThere) {
  const ModelFolder folder;
  std::filesystem::rename(folder / "data", folder / "elsewhere");
  expect_refused(folder, fsdp_run({folder.model(), "--loss", "cross_entropy"}),
                 {folder / "data", "beside the model is not there; give --data"});
}

// A program that is no launcher listens at the port.
TEST(BadCommandTest, APortOfAnotherProgram) {
  const ModelFolder folder;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(fd, generic, length), 0);
  ASSERT_EQ(listen(fd, 8), 0);
  ASSERT_EQ(getsockname(fd, generic, &length), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const Finished run = Program::run(folder.train() + Words{"--nnodes", "2", "--timeout", "2",
                                                           "--rdzv-endpoint", "127.0.0.1:" + port});
  EXPECT_EQ(run.status, 1) << run.err;
  expect_one_line(run.err, {"port " + port + " belongs to another program"});
  close(fd);
}

// These sizes run, with one remark.
TEST(BadCommandTest, SizesThatMakeNoSense) {
  const ModelFolder folder;
  const Words train = fsdp_run({folder.model(), "--loss", "cross_entropy", "--steps", "1"});
  const Finished large = Program::run(train + Words{"--batch-size", "100000"});
  EXPECT_EQ(large.status, 0) << large.err;
  EXPECT_EQ(lines_of(large.err).size(), 1u) << large.err;
  expect_one_line(large.err, {"warning: --batch-size 100000", "12 rows"});
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (cores > 7) GTEST_SKIP() << "64 ranks are not many here";
  const Finished many = Program::run(train + ranks(64));
  EXPECT_EQ(many.status, 0) << many.err;
  expect_one_line(many.err, {"warning: --nproc-per-node: 64 ranks share"});
}

// The answer of `plan` fits on a screen, whatever the model; --bf16 and other names are taken.
TEST(BadCommandTest, DryRunIsAPlanOfAtMostTwentyLines) {
  for (const std::string model : {"mlp/model.onnx", "bert_tiny/model.onnx", "blocks/model.onnx"}) {
    const Words words =
        fsdp_run({fixture(model), "--loss", "cross_entropy", "--data", "synthetic", "--max-steps",
                  "1", "--learning-rate", "0.1", "-n", "2", "--bf16", "--strategy", "FULL_SHARD"});
    const Finished plan = Program::run(words + Words{"--dry-run"});
    EXPECT_EQ(plan.status, 0) << plan.err;
    EXPECT_LE(lines_of(plan.out).size(), 20u) << plan.out;
    for (const char* fact : {"at the peak of ", "2 ranks", "bfloat16",
                             "predicted: ", "most time: ", "fits: 2 ranks", "--schedule (steps)"}) {
      EXPECT_THAT(plan.out, testing::HasSubstr(fact));
    }
    Words steps = words + Words{"--schedule"};
    steps.insert(steps.begin() + 1, "plan");
    EXPECT_GT(lines_of(Program::run(steps).out).size(), 25u);
  }
}

// ---- Places where nothing can be written ----

Words train_into(const ModelFolder& folder, const std::string& output, const std::string& metrics) {
  return fsdp_run(
      {folder.model(), "--loss", "cross_entropy", "--output", output, "--metrics", metrics});
}

TEST(BadCommandTest, OutputThatCannotBeWritten) {
  const ModelFolder folder;
  folder.write("file", "text");
  const std::string metrics = folder / "metrics.jsonl";
  const std::vector<std::pair<std::string, std::string>> all = {
      {folder / "absent/trained.onnx", folder / "absent"},
      {folder / "file/trained.onnx", folder / "file"},
      {folder / "data", "folder"},
      {folder / "trained.onnx/", "trained.onnx/"},
      {"/dev/null", "/dev/null"}};
  for (const auto& [output, fact] : all) {
    expect_refused(folder, train_into(folder, output, metrics), {"cannot be written", fact});
  }
}

TEST(BadCommandTest, MetricsThatCannotBeWritten) {
  const ModelFolder folder;
  for (const std::string& metrics : {folder / "absent/metrics.jsonl", folder / "data"}) {
    expect_refused(folder, train_into(folder, folder.output(), metrics), {"--metrics " + metrics});
  }
}

// Root may write anywhere, so the run changes to another user if it can.
TEST(BadCommandTest, FoldersWithoutPermission) {
  constexpr uid_t kNobody = 65534;
  const ModelFolder folder;
  std::filesystem::create_directory(folder / "closed");
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(folder / "closed", std::filesystem::perms(0555));
  const Refusal refusal{.start = {.user = geteuid() == 0 ? kNobody : 0}};
  if (Program::run(fsdp_run({"ops"}), refusal.start).status != 0) {
    GTEST_SKIP() << "user " << kNobody << " cannot start " << OFSDP_FSDP_RUN;
  }
  expect_refused(folder, train_into(folder, folder / "closed/trained.onnx", "/dev/null"),
                 {folder / "closed/trained.onnx", "cannot be written", "Permission denied"},
                 refusal);
  expect_refused(folder,
                 fsdp_run({folder.model(), "--loss", "cross_entropy", "--metrics",
                           folder / "closed/metrics.jsonl"}),
                 {"--metrics " + (folder / "closed/metrics.jsonl"), "Permission denied"}, refusal);
}

}  // namespace bad_command_test
}  // namespace ofsdp
