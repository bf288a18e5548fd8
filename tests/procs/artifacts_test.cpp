// Folders of ONNX Runtime's training artifacts, recorded with the losses of its trainer
// (tests/oracle/make_artifacts.py). The losses are the same on 1, 2 and 3 ranks. A second run goes
// on from an output folder. Each broken folder gives one line.
#include <cmath>
#include <fstream>

#include "importer/file/onnx_file.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace artifacts_test {

namespace fs = std::filesystem;

constexpr int kBatch = 12;  // over all ranks
constexpr double kTolerance = 2e-5;
constexpr const char* kFiles[] = {"checkpoint", "eval_model.onnx", "module_eval_model.onnx",
                                  "optimizer_model.onnx", "training_model.onnx"};

std::string artifacts(const std::string& name) { return fixture("artifacts/" + name); }

// ONNX Runtime's losses: for each step, then for the eval model on the first batch.
std::vector<double> recorded(const std::string& name) {
  std::vector<double> losses;
  std::ifstream file(artifacts(name) + "/losses.txt");
  for (double loss = 0; file >> loss;) losses.push_back(loss);
  return losses;
}

Words train(const std::string& folder, int world, int steps) {
  return fsdp_run({folder, "--strategy", "full_shard", "--no-shuffle", "--eval-data", "none",
                   "--global-batch-size", std::to_string(kBatch), "--steps",
                   std::to_string(steps)}) +
         ranks(world);
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], kTolerance) << "step " << i + 1;
  }
}

struct Case {
  const char* name;
  int world;
};

class ArtifactsTest : public testing::TestWithParam<Case> {};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const char* name : {"mlp_adamw", "mlp_sgd", "operators", "mnist_cnn", "bert_cls"}) {
    for (const int world : {1, 2, 3}) list.push_back({name, world});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Folders, ArtifactsTest, testing::ValuesIn(cases()), [](const auto& info) {
  return format_text("{}_on_{}", info.param.name, info.param.world);
});

TEST_P(ArtifactsTest, LossesAreThoseOfOnnxRuntime) {
  const onnx_bytes::Folder folder;
  const auto [name, world] = GetParam();
  const std::string metrics = folder / "metrics.jsonl";
  std::vector<double> expected = recorded(name);
  ASSERT_EQ(expected.size(), 21u);
  expected.pop_back();
  const Finished run =
      Program::run(train(artifacts(name), world, 20) + Words{"--metrics", metrics});
  ASSERT_EQ(run.status, 0) << run.err;
  expect_near(losses_of(metrics), expected);
}

// Ten steps, then ten more from the written folder: weights, moments and the count of steps.
TEST_P(ArtifactsTest, AFolderOfOutputGoesOn) {
  const onnx_bytes::Folder folder;
  const auto [name, world] = GetParam();
  const std::string metrics = folder / "metrics.jsonl", between = folder / "between";
  const std::vector<double> expected = recorded(name);
  // 5 steps are one epoch, so the second run begins at the first row too.
  const Finished first =
      Program::run(train(artifacts(name), world, 10) + Words{"--output", between});
  ASSERT_EQ(first.status, 0) << first.err;
  const Finished second =
      Program::run(train(between, 4 - world, 10) +
                   Words{"--data", artifacts(name) + "/data", "--metrics", metrics});
  ASSERT_EQ(second.status, 0) << second.err;
  expect_near(losses_of(metrics), {expected.begin() + 10, expected.begin() + 20});
}

TEST(ArtifactsFolderTest, HasTheFilesOfTheInputAndReplacesOneOfItsOwn) {
  const onnx_bytes::Folder folder;
  const Words words = train(artifacts("bert_cls"), 2, 1) + Words{"--output", folder / "out"};
  std::map<std::string, std::string> before;
  for (int i = 0; i < 2; ++i) {
    const Finished run = Program::run(words);
    ASSERT_EQ(run.status, 0) << run.err;
    for (const char* name : kFiles) {
      const std::string bytes = onnx_bytes::content(folder / "out" + "/" + name);
      EXPECT_FALSE(bytes.empty()) << name;
      EXPECT_TRUE(before.try_emplace(name, bytes).first->second == bytes) << name;
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(folder / "out"), {}), 5);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1) << "something is left";
  }
}

TEST(ArtifactsFolderTest, TheEvalModelHasTheWeightsInside) {
  const onnx_bytes::Folder folder;
  const std::string name = "mlp_adamw", metrics = folder / "metrics.jsonl";
  const Finished run =
      Program::run(train(artifacts(name), 2, 20) + Words{"--output", folder / "out"});
  ASSERT_EQ(run.status, 0) << run.err;
  // An ordinary model with the loss inside: eval takes no step before it evaluates the first
  // rows.
  const Finished eval = Program::run(fsdp_run(
      {"eval", folder / "out" + "/eval_model.onnx", "--data", artifacts(name) + "/data",
       "--eval-data", artifacts(name) + "/data", "--batch-size", "12", "--metrics", metrics}));
  ASSERT_EQ(eval.status, 0) << eval.err;
  const Finished own = Program::run(
      fsdp_run({"eval", folder / "out", "--data", artifacts(name) + "/data", "--eval-data",
                artifacts(name) + "/data", "--batch-size", "12", "--metrics", metrics + "2"}));
  ASSERT_EQ(own.status, 0) << own.err;
  EXPECT_EQ(losses_of(metrics, "eval").size(), 1u);
  expect_near(losses_of(metrics, "eval"), losses_of(metrics + "2", "eval"));
}

// The second run reads the eval model from the first run, with the weights inside.
TEST(ArtifactsFolderTest, TheEvalModelOfASecondRunHasTheWeightsInside) {
  const onnx_bytes::Folder folder;
  const std::string name = "mlp_adamw";
  const auto weights = [&](const std::string& of) {
    const auto file = importer::OnnxFile::open(folder / of + "/eval_model.onnx");
    std::map<std::string, int64_t> sizes;
    if (!file.ok()) return sizes;
    for (const auto& weight : file->initializers()) sizes[weight.name] = weight.shape.numel();
    return sizes;
  };
  const Finished first =
      Program::run(train(artifacts(name), 1, 3) + Words{"--output", folder / "first"});
  ASSERT_EQ(first.status, 0) << first.err;
  const Finished second =
      Program::run(train(folder / "first", 1, 2) +
                   Words{"--data", artifacts(name) + "/data", "--output", folder / "second"});
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_GE(weights("first").size(), 4u);
  EXPECT_EQ(weights("second"), weights("first"));
  const Finished eval =
      Program::run(fsdp_run({"eval", folder / "second" + "/eval_model.onnx", "--data",
                             artifacts(name) + "/data", "--eval-data", artifacts(name) + "/data"}));
  EXPECT_EQ(eval.status, 0) << eval.err;
}

// Count of a step in the training program's schedule, as plan prints it.
int count_steps(const std::string& plan, const std::string& step) {
  const size_t begin = plan.find("training of"), end = plan.find("evaluation of");
  int count = 0;
  for (const std::string& line : lines_of(plan.substr(begin, end - begin))) {
    count += line.find(" " + step + " ") != std::string::npos || line.ends_with(" " + step);
  }
  return count;
}

// Their backward reads the parameters unit by unit, as with autodiff: a block is gathered once in
// forward and once in backward, and the gradient is complete once. (On one host nothing is
// gathered.)
TEST(ArtifactsFolderTest, BackwardBelongsToTheUnitsOfForward) {
  const Finished plan =
      Program::run(fsdp_run({"plan", artifacts("bert_cls"), "--strategy", "full_shard",
                             "--batch-size", "6", "--nnodes", "2", "--verbose", "--schedule"}));
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, testing::HasSubstr("layer.1"));
  for (const char* unit : {"u0", "u1", "u2"}) {
    const int gathers = std::string(unit) == "u2" ? 1 : 2;  // the root stays
    EXPECT_EQ(count_steps(plan.out, std::string("Gather ") + unit), gathers) << plan.out;
    EXPECT_EQ(count_steps(plan.out, std::string("Post ") + unit), 1) << plan.out;
  }
}

// A copy of a folder; a test spoils it.
class SpoiltArtifacts : public ModelFolder {
 public:
  explicit SpoiltArtifacts(const std::string& name = "mlp_adamw") {
    fs::copy(artifacts(name), path() + "/a", fs::copy_options::recursive);
  }
  std::string file(const std::string& name) const { return *this / ("a/" + name); }
  Words command(const Words& more = {}) const {
    return fsdp_run({*this / "a", "--batch-size", "4", "--steps", "2", "--output", *this / "out"}) +
           more;
  }
};

TEST(BadArtifactsTest, TheFolderThatTheseTestsSpoilIsGood) {
  const SpoiltArtifacts folder;
  EXPECT_EQ(Program::run(folder.command()).status, 0);
}

TEST(BadArtifactsTest, MissingFiles) {
  const SpoiltArtifacts folder;
  fs::remove(folder.file("checkpoint"));
  expect_refused(folder, folder.command(), {folder / "a", "no file checkpoint"});
}

// The eval model is only written, never trained; without one the output has none.
TEST(BadArtifactsTest, TheEvalModelMayBeMissing) {
  const SpoiltArtifacts folder;
  ASSERT_EQ(Program::run(folder.command()).status, 0);
  const std::string checkpoint = onnx_bytes::content(folder / "out/checkpoint");
  fs::remove_all(folder / "out");
  fs::remove(folder.file("eval_model.onnx"));
  const Finished run = Program::run(folder.command());
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(onnx_bytes::content(folder / "out/checkpoint") == checkpoint);
  EXPECT_FALSE(fs::exists(folder / "out/eval_model.onnx"));
}

TEST(BadArtifactsTest, OneOfTheFilesInPlaceOfTheFolder) {
  const SpoiltArtifacts folder;
  for (const char* name : {"training_model.onnx", "optimizer_model.onnx"}) {
    expect_refused(folder, fsdp_run({folder.file(name), "--steps", "1"}),
                   {folder.file(name), "ONNX Runtime's training artifacts",
                    "give their folder, " + folder / "a/"});
  }
}

TEST(BadArtifactsTest, TruncatedAndForeignCheckpoints) {
  const SpoiltArtifacts folder;
  const std::string whole = onnx_bytes::content(folder.file("checkpoint"));
  for (const size_t length :
       {size_t{0}, size_t{7}, size_t{100}, whole.size() / 2, whole.size() - 200}) {
    folder.write("a/checkpoint", whole.substr(0, length));
    expect_refused(folder, folder.command(), {folder.file("checkpoint"), "no checkpoint"});
  }
  folder.write("a/checkpoint", onnx_bytes::content(folder.file("eval_model.onnx")));
  expect_refused(folder, folder.command(), {folder.file("checkpoint"), "identifier ODTC"});
}

TEST(BadArtifactsTest, WeightsOfAnotherModel) {
  const SpoiltArtifacts folder("mnist_cnn");
  folder.write("a/checkpoint", onnx_bytes::content(artifacts("mlp_sgd") + "/checkpoint"));
  expect_refused(folder, folder.command(), {folder.file("training_model.onnx"), "conv1.weight"});
}

TEST(BadArtifactsTest, SizesOfAnotherModel) {
  const SpoiltArtifacts folder;
  std::string bytes = onnx_bytes::content(folder.file("checkpoint"));
  // The dims of fc3.bias, the only weight with 4 elements: in ONNX Runtime's file they precede the
  // name.
  const size_t name = bytes.rfind("fc3.bias");
  const size_t dims = bytes.rfind(std::string("\x01\0\0\0\x04\0\0\0\0\0\0\0", 12), name);
  ASSERT_NE(dims, std::string::npos);
  bytes[dims + 4] = 5;
  folder.write("a/checkpoint", bytes);
  expect_refused(folder, folder.command(), {folder.file("checkpoint"), "fc3.bias"});
}

TEST(BadArtifactsTest, ATrainingModelWithoutBackward) {
  const SpoiltArtifacts folder;
  fs::copy_file(folder.file("eval_model.onnx"), folder.file("training_model.onnx"),
                fs::copy_options::overwrite_existing);
  expect_refused(folder, folder.command(),
                 {folder.file("training_model.onnx"), "InPlaceAccumulatorV2"});
}

TEST(BadArtifactsTest, AnOptimizerThatMixesParameters) {
  const SpoiltArtifacts folder;
  std::string bytes = onnx_bytes::content(folder.file("optimizer_model.onnx"));
  for (size_t at; (at = bytes.find("InplaceClipGradNorm")) != std::string::npos;) {
    bytes.replace(at, 19, "InplaceMixParamsAll");
  }
  folder.write("a/optimizer_model.onnx", bytes);
  expect_refused(folder, folder.command(),
                 {folder.file("optimizer_model.onnx"), "InplaceMixParamsAll", "mix parameters"});
}

TEST(BadArtifactsTest, OptionsThatContradict) {
  const SpoiltArtifacts folder;
  expect_refused(folder, folder.command({"--optimizer", "sgd"}), {"--optimizer", "adamw"});
  expect_refused(folder, folder.command({"--loss", "mse"}), {"--loss", folder / "a"});
  expect_refused(folder, folder.command({"--freeze", "fc1.bias"}), {"--freeze", folder / "a"});
  expect_refused(folder, folder.command({"--param-dtype", "bfloat16"}), {"--param-dtype"});
}

TEST(BadArtifactsTest, OutputsThatWouldDestroy) {
  const SpoiltArtifacts folder;
  expect_refused(folder, folder.command({"--output", folder / "a"}), {folder / "a", "the input"});
  folder.write("out/letters.txt", "dear");
  expect_refused(folder, folder.command(), {folder / "out", "letters.txt"});
}

// `export` from a checkpoint writes the same folder as the run's --output.
TEST(ArtifactsFolderTest, ACheckpointIsExportedAsAFolder) {
  for (const char* name : {"mlp_adamw", "mlp_sgd", "mnist_cnn"}) {
    const SpoiltArtifacts folder(name);
    const Words saved{"--checkpoint-dir", folder / "saves", "--checkpoint-interval", "2step"};
    ASSERT_EQ(Program::run(folder.command(saved)).status, 0);
    const Finished run =
        Program::run(fsdp_run({"export", folder / "saves", "-o", folder / "exported"}));
    ASSERT_EQ(run.status, 0) << run.err;
    for (const char* file : kFiles) {
      EXPECT_TRUE(onnx_bytes::content(folder / "exported/" + file) ==
                  onnx_bytes::content(folder / "out/" + file))
          << name << " " << file;
    }
    const Finished one =
        Program::run(fsdp_run({"export", folder / "saves", "-o", folder / "x.onnx"}));
    EXPECT_EQ(one.status, 2);
    expect_one_line(one.err, {"x.onnx", "expected a folder", "eval_model.onnx"});
  }
}

TEST(ArtifactsFolderTest, FlagsChangeTheNumbersOfTheirOptimizer) {
  const onnx_bytes::Folder folder;
  const std::string metrics = folder / "metrics.jsonl";
  const Finished run =
      Program::run(train(artifacts("mlp_sgd"), 1, 2) + Words{"--lr", "0.25", "--metrics", metrics});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(rows_of(metrics).at(0)["lr"], 0.25);
}

}  // namespace artifacts_test
}  // namespace ofsdp
