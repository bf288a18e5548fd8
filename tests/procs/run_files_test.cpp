// No output is an input, and no two outputs are one file: every output flag with every input, by
// several names, before anything is written. All inputs keep their bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/metrics_rows.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace run_files_test {

using onnx_bytes::content;
using onnx_bytes::external;
using onnx_bytes::kFloat;
using onnx_bytes::linear_model;
using onnx_bytes::linear_weights;
using onnx_bytes::tensor;

namespace fs = std::filesystem;

// predict RUN must not answer with the weights from the run before.
TEST(ResumedRun, RenewsTheModelOfItsFolder) {
  const ModelFolder folder;
  const Words run = fsdp_run({folder.model(), "--loss", "cross_entropy", "--batch-size", "2",
                              "--steps", "2", "--run-dir", folder / "runs", "--run-name", "r"});
  for (const int count : {1, 2}) {
    fs::remove_all(folder / "runs");
    const Finished first = Program::run(run + ranks(count));
    ASSERT_EQ(first.status, 0) << first.err;
    const std::string before = content(folder / "runs/r/model.onnx");
    const Finished next = Program::run(
        fsdp_run({"resume", folder / "runs/r", "--steps", "4", "-o", folder / "next.onnx"}));
    ASSERT_EQ(next.status, 0) << next.err;
    EXPECT_FALSE(content(folder / "next.onnx") == before);
    EXPECT_TRUE(content(folder / "runs/r/model.onnx") == content(folder / "next.onnx"));
  }
}

// The same for an adapter that cannot be merged, which replaces the model in the folder.
TEST(ResumedRun, RenewsTheAdapterOfItsFolder) {
  const ModelFolder folder;
  const std::string few = fixture("few_bits/nbits");
  const std::string kept = folder / "runs/r/adapter.safetensors";
  for (const char* other : {"next.safetensors", "peft/", "next.onnx_adapter"}) {
    SCOPED_TRACE(other);
    fs::remove_all(folder / "runs");
    const Finished first = Program::run(fsdp_run(
        {few + "/model.onnx", "--data", few + "/data", "--loss", "cross_entropy", "--steps", "2",
         "--lora", "*_Q*", "--device", "cpu", "--run-dir", folder / "runs", "--run-name", "r"}));
    ASSERT_EQ(first.status, 0) << first.err;
    const std::string before = content(kept), path = folder / other;
    ASSERT_FALSE(before.empty());
    const Finished next =
        Program::run(fsdp_run({"resume", folder / "runs/r", "--steps", "4", "--adapter", path}));
    ASSERT_EQ(next.status, 0) << next.err;
    if (path.ends_with(".onnx_adapter")) {
      EXPECT_FALSE(fs::exists(kept));
      continue;
    }
    const std::string written =
        content(path.ends_with('/') ? path + "adapter_model.safetensors" : path);
    EXPECT_FALSE(written == before);
    EXPECT_TRUE(content(kept) == written);
  }
}

// A run with every kind of input.
class RunFilesTest : public testing::Test {
 protected:
  RunFilesTest() {
    write_external("model.onnx", "weights.bin");
    write_external("teacher.onnx", "teacher.bin");
    folder_.write("c.yaml", "lr: 0.1\n");
    folder_.write("model.yaml", "seed: 3\n");
    folder_.write("data.yaml",
                  "train:\n  x: {file: data/x.npy}\n  labels: {file: data/labels.npy}\n"
                  "eval:\n  x: {file: ev/x.npy}\n  labels: {file: ev/labels.npy}\n");
    for (const char* name : {"x.npy", "labels.npy"}) {
      folder_.write(format_text("ev/{}", name), content(folder_ / format_text("data/{}", name)));
    }
  }

  void write_external(const std::string& model, const std::string& data) {
    onnx_bytes::SmallModel made = linear_model();
    made.initializers[0] = tensor("w", kFloat, {4, 3}, external(data, "0", "48"));
    folder_.write(model, made.bytes());
    folder_.write(data, onnx_bytes::bytes_of(linear_weights()));
  }

  Words run(const std::string& command = "train") const {
    return fsdp_run({command, path("model.onnx"), "--data", path("data.yaml"), "--eval-data",
                     path("ev"), "--loss", "cross_entropy", "--batch-size", "2", "--config",
                     path("c.yaml")});
  }
  Words train() const { return run() + Words{"--teacher", path("teacher.onnx"), "--steps", "2"}; }

  std::string path(const std::string& name) const { return folder_ / name; }

  // Exit 2 with a line that has `facts`; no file was changed, made or removed.
  void expect_kept(const Words& words, const Words& facts, const Start& start = {}) const {
    SCOPED_TRACE(joined(words, " "));
    const auto before = folder_.contents();
    const Finished run = Program::run(words, start);
    EXPECT_EQ(run.status, 2) << run.out;
    expect_one_line(run.err, facts);
    EXPECT_TRUE(folder_.contents() == before) << "a file was changed";
  }

  ModelFolder folder_;
};

const Words kInputs = {"model.onnx",      "weights.bin", "teacher.onnx", "teacher.bin",
                       "c.yaml",          "model.yaml",  "data.yaml",    "data/x.npy",
                       "data/labels.npy", "ev/x.npy",    "ev/labels.npy"};

TEST_F(RunFilesTest, NoOutputIsAnInput) {
  for (const std::string flag :
       {"--output", "--metrics", "--trace", "--log", "--adapter", "--report"}) {
    for (const std::string& input : kInputs) {
      const std::string value = (flag == "--log" ? "csv:" : "") + path(input);
      const Words lora = flag == "--adapter" ? Words{"--lora", "w"} : Words{};
      expect_kept(train() + lora + Words{flag, value},
                  {flag + " " + path(input), "expected another file than"});
    }
  }
}

TEST_F(RunFilesTest, EveryCommandGoesThroughIt) {
  for (const std::string& input : kInputs) {
    if (input.starts_with("teacher")) continue;
    expect_kept(run("eval") + Words{"--metrics", path(input)}, {"--metrics " + path(input)});
    expect_kept(run("plan") + Words{"--html", path(input)}, {"--html " + path(input)});
    expect_kept(run("doctor") + Words{"--find-lr", "--picture", path(input)},
                {"--picture " + path(input)});
    expect_kept(run("make-training") + Words{"--output", path(input)}, {"--output " + path(input)});
    expect_kept(run("config") + Words{"--output", path(input)}, {"--output " + path(input)});
  }
  for (const std::string input :
       {"model.onnx", "weights.bin", "data.yaml", "data/x.npy", "data/labels.npy"}) {
    expect_kept(fsdp_run({"data", path("data.yaml"), path("model.onnx"), "--html", path(input)}),
                {"--html " + path(input)});
  }
}

// Other paths to the same file: each is seen through.
TEST_F(RunFilesTest, OtherNamesAreSeenThrough) {
  fs::create_symlink("x.npy", path("data/link"));
  fs::create_hard_link(path("data/x.npy"), path("second"));
  fs::create_directory_symlink("data", path("elsewhere"));
  for (const std::string name : {"data/link", "second", "elsewhere/x.npy", "data/../data/./x.npy",
                                 "elsewhere/../data/x.npy"}) {
    for (const std::string flag : {"--output", "--metrics", "--trace"}) {
      expect_kept(train() + Words{flag, path(name)}, {flag + " " + path(name), "--data"});
    }
  }
  const Words relative{"--metrics", "ev/../data/x.npy"};
  expect_kept(train() + relative, {"--metrics ev/../data/x.npy"}, {.folder = path("")});
}

TEST_F(RunFilesTest, NoTwoOutputsAreOneFile) {
  fs::create_directory_symlink(".", path("here"));
  const std::vector<std::pair<std::string, std::string>> outputs = {{"--output", ""},
                                                                    {"--metrics", ""},
                                                                    {"--trace", ""},
                                                                    {"--log", "csv:"},
                                                                    {"--checkpoint-dir", ""}};
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      expect_kept(train() + Words{outputs[k].first, outputs[k].second + path("new"),
                                  outputs[i].first, outputs[i].second + path("here/new")},
                  {outputs[k].first, outputs[i].first, "new"});
    }
  }
  expect_kept(train() + Words{"--log", "csv:" + path("new"), "--log", "csv:" + path("new")},
              {"--log " + path("new"), "that of --log"});
  // Next to the input the trained model has a separate data file, which is an output as well.
  expect_kept(train() + Words{"--output", path("o.onnx"), "--metrics", path("o.onnx.data")},
              {"the external data of --output", "--metrics"});
}

TEST_F(RunFilesTest, FoldersOfDataTakeNoCheckpoints) {
  fs::create_directory_symlink("ev", path("link"));
  for (const std::string name : {"ev", "link"}) {
    expect_kept(train() + Words{"--checkpoint-dir", path(name)},
                {"--checkpoint-dir " + path(name), "--eval-data"});
  }
  expect_kept(fsdp_run({path("model.onnx"), "--loss", "cross_entropy", "--steps", "1",
                        "--checkpoint-dir", path("data")}),
              {"--checkpoint-dir " + path("data"), "--data"});
}

TEST_F(RunFilesTest, CheckpointsAndTheirModelAreInputsOfExport) {
  const Words saving{"--checkpoint-dir", path("ck"), "--metrics", path("ck/m.jsonl")};
  const Finished saved = Program::run(run() + Words{"--steps", "2"} + saving);
  ASSERT_EQ(saved.status, 0) << saved.err;
  const std::string step = "ck/step-00000002";
  for (const std::string& file : Words{step + "/manifest.json", "model.onnx", "weights.bin"}) {
    for (const std::string& from : Words{"ck", step}) {
      expect_kept(fsdp_run({"export", path(from), "-o", path(file)}), {"--output " + path(file)});
    }
  }
  expect_kept(run() + Words{"--resume", path(step), "--metrics", path(step + "/manifest.json")},
              {"--metrics", "--resume"});
  // A resumed run goes on in the checkpoint's folder, with the same metrics.
  const Finished resumed =
      Program::run(run() + Words{"--steps", "4", "--resume", "latest"} + saving);
  EXPECT_EQ(resumed.status, 0) << resumed.err;
}

// Outputs in folders with inputs, and a configuration that names another command's output.
TEST_F(RunFilesTest, OtherFilesAreFine) {
  const auto before = folder_.contents();
  const Finished trained = Program::run(
      train() + Words{"--output", path("data/o.onnx"), "--metrics", path("data/m.jsonl"),
                      "--checkpoint-dir", path(""), "--log", "csv:" + path("ev/rows.csv")});
  EXPECT_EQ(trained.status, 0) << trained.err;
  const auto after = folder_.contents();
  for (const auto& [name, bytes] : before) EXPECT_TRUE(after.at(name) == bytes) << name;
  // A device is refused because it is a device, not as a file that two flags share.
  const Finished device = Program::run(run("eval") + Words{"--metrics", "/dev/null"});
  EXPECT_THAT(device.err, testing::HasSubstr("found a device or pipe"));
  // A training configuration may name the trained file, which an evaluation reads.
  fs::copy_file(path("model.onnx"), path("t.onnx"));
  folder_.write("c.yaml", "output: t.onnx\n");
  const Finished eval =
      Program::run(fsdp_run({"eval", path("t.onnx"), "--data", path("data.yaml"), "--loss",
                             "cross_entropy", "--config", path("c.yaml")}));
  EXPECT_EQ(eval.status, 0) << eval.err;
}

// ---- Run folders ----

class KeptRunTest : public testing::Test {
 protected:
  // In a separate working directory, as for a user who has set no variable.
  Finished run(const Words& more) const {
    const Words model{folder_.model(), "--loss", "cross_entropy", "--batch-size", "2"};
    return Program::run(Words{"env", "-u", "OFSDP_RUN_DIR"} + fsdp_run(model + more),
                        {.folder = folder_.path()});
  }
  std::vector<std::string> names(const std::string& folder) const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_ / folder)) {
      found.push_back(entry.path().filename().string());
    }
    std::ranges::sort(found);
    return found;
  }
  bool any_runs() const { return fs::exists(folder_ / "runs"); }

  ModelFolder folder_;
};

TEST_F(KeptRunTest, HoldsAllThatIsKnownOfTheRun) {
  for (const int count : {1, 2}) {
    const std::string name = format_text("of {}", count);
    const Finished kept =
        run(ranks(count) + Words{"--steps", "3", "--run-name", name, "--lr", "0.5"});
    ASSERT_EQ(kept.status, 0) << kept.err;
    EXPECT_EQ(kept.err, "");
    EXPECT_THAT(kept.out, testing::HasSubstr("runs/" + name + " (run)"));
    Words files = names("runs/" + name);
    std::erase(files, ".run");  // the launcher's
    EXPECT_THAT(files, testing::ElementsAre("checkpoints", "command.txt", "config.yaml", "log.txt",
                                            "metrics.jsonl", "model.onnx", "report.html"));
    const std::string in = folder_ / ("runs/" + name);
    EXPECT_TRUE(fs::exists(in + "/checkpoints/step-00000003"));
    EXPECT_EQ(rows_of(in + "/metrics.jsonl", "step").size(), 3u);
    // The same lines as on the screen, which is no terminal here.
    EXPECT_EQ(lines_of(content(in + "/log.txt")).size(), lines_of(kept.out).size());
    const std::string trained = content(in + "/model.onnx");
    // The kept command, from elsewhere, and the kept configuration make the same file.
    const Finished again = Program::run({"/bin/sh", in + "/command.txt"}, {.folder = "/"});
    EXPECT_EQ(again.status, 0) << again.err;
    EXPECT_TRUE(content(in + "-2/model.onnx") == trained);
    const Finished configured =
        run({"--config", in + "/config.yaml", "--output", folder_ / "c.onnx"});
    EXPECT_EQ(configured.status, 0) << configured.err;
    EXPECT_TRUE(content(folder_ / "c.onnx") == trained);
  }
}

TEST_F(KeptRunTest, ATakenNameGetsANumber) {
  for (int i = 0; i < 3; ++i) ASSERT_EQ(run({"--steps", "1"}).status, 0);
  const Words found = names("runs");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_THAT(found[0], testing::MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}-model"));
  EXPECT_EQ(found[1], found[0] + "-2");
  EXPECT_EQ(found[2], found[0] + "-3");
}

TEST_F(KeptRunTest, ThereIsOneWhereItIsAskedFor) {
  const std::string output = folder_ / "o.onnx";
  ASSERT_EQ(run({"--steps", "1", "--output", output}).status, 0);
  const Finished none = run({"--steps", "1", "--run-dir", "none"});
  ASSERT_EQ(none.status, 0);
  EXPECT_THAT(none.out, testing::HasSubstr("writes: nothing"));
  EXPECT_EQ(run({"--steps", "1", "--run-dir", "none", "--run-name", "x"}).status, 2);
  EXPECT_FALSE(any_runs());
  fs::remove(output);
  ASSERT_EQ(run({"--steps", "1", "--output", output, "--metrics", folder_ / "m.jsonl", "--run-dir",
                 "kept", "--run-name", "x"})
                .status,
            0);
  EXPECT_THAT(names("kept/x"), testing::ElementsAre("checkpoints", "command.txt", "config.yaml",
                                                    "log.txt", "report.html"));
  EXPECT_TRUE(fs::exists(output));
  // A refused run leaves no folder.
  for (const int count : {1, 2}) {
    EXPECT_EQ(run(ranks(count) + Words{"--labels", "nothing"}).status, 2);
    EXPECT_FALSE(any_runs());
  }
  folder_.write("model.yaml", "run_dir: elsewhere\n");
  const Finished unnamed = run({"--steps", "1"});
  EXPECT_EQ(unnamed.status, 2);
  expect_one_line(unnamed.err, {"run_dir"});
}

TEST_F(KeptRunTest, IsNoFolderOfData) {
  const Finished refused = run({"--steps", "1", "--data", "data", "--run-dir", "data"});
  EXPECT_EQ(refused.status, 2);
  expect_one_line(refused.err, {"--run-dir data", "--data"});
}

// The plan without flags equals the run's plan.
TEST_F(KeptRunTest, ThePlanKnowsItsMemory) {
  ASSERT_EQ(run({"--steps", "2", "--run-name", "x"}).status, 0);
  const Finished plan =
      Program::run(Words{"env", "-u", "OFSDP_RUN_DIR"} +
                       fsdp_run({"plan", folder_.model(), "--loss", "cross_entropy", "--batch-size",
                                 "2", "--steps", "2", "--json"}),
                   {.folder = folder_.path()});
  ASSERT_EQ(plan.status, 0) << plan.err;
  const auto planned = nlohmann::json::parse(plan.out).at("memory").at("peak_bytes");
  EXPECT_EQ(rows_of(folder_ / "runs/x/metrics.jsonl", "end").at(0).at("peak_bytes").at(0), planned);
  EXPECT_EQ(names("runs").size(), 1u);
}

// Adapters on weights in few bits cannot be merged; training artifacts are a folder.
TEST_F(KeptRunTest, KeepsTheFormInWhichAModelIsWritten) {
  const Start start{.folder = folder_.path()};
  const std::string few = fixture("few_bits/nbits"), artifacts = fixture("artifacts/mlp_sgd");
  const Finished adapter = Program::run(
      fsdp_run({few + "/model.onnx", "--data", few + "/data", "--loss", "cross_entropy", "--steps",
                "2", "--lora", "*_Q*", "--device", "cpu", "--run-name", "adapter"}),
      start);
  ASSERT_EQ(adapter.status, 0) << adapter.err;
  EXPECT_THAT(adapter.out, testing::HasSubstr("wrote runs/adapter/adapter.safetensors (adapter)"));
  EXPECT_THAT(names("runs/adapter"), testing::Contains("adapter.safetensors"));
  EXPECT_THAT(names("runs/adapter"), testing::Not(testing::Contains("model.onnx")));
  const Finished folder =
      Program::run(fsdp_run({artifacts, "--data", artifacts + "/data", "--batch-size", "4",
                             "--steps", "2", "--run-name", "artifacts"}),
                   start);
  ASSERT_EQ(folder.status, 0) << folder.err;
  EXPECT_TRUE(fs::exists(folder_ / "runs/artifacts/model/training_model.onnx"));
}

}  // namespace run_files_test
}  // namespace ofsdp
