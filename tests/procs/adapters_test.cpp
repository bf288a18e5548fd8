// Adapters, a new head and untied copies in runs of the real program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "importer/file/onnx_file.h"
#include "importer/file/tensor_file.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace adapters_test {

using namespace onnx_bytes;  // NOLINT: the words of this test

std::vector<float> weight_of(const std::string& path, const std::string& name) {
  auto file = OnnxFile::open(path);
  if (!file.ok()) return {};
  for (const Initializer& weight : file->initializers()) {
    if (weight.name != name) continue;
    std::vector<float> values(static_cast<size_t>(weight.shape.numel()));
    EXPECT_TRUE(file->read(weight, 0, values).ok());
    return values;
  }
  return {};
}

std::vector<float> tensor_of(const std::string& path, const std::string& name) {
  const auto file = open_safetensors(path);
  if (!file.ok() || file->find(name) == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(file->find(name)->shape.numel()));
  EXPECT_TRUE(file->read(*file->find(name), 0, values).ok());
  return values;
}

class AdapterRuns : public ModelFolder {
 public:
  std::string adapter() const { return *this / "adapter_model.safetensors"; }
  Words tuned() const {
    return fsdp_run({model(), "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.5",
                     "--global-batch-size", "12", "--no-shuffle", "--epochs", "100", "--lora",
                     "all", "--lora-rank", "2", "--lora-alpha", "6"});
  }
  Words writing() const { return {"--output", output(), "--adapter", adapter()}; }
  // Runs and returns the bytes in both files.
  std::string files_of(const Words& words) const {
    const Finished run = Program::run(words + writing());
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_EQ(run.err, "");
    return content(output()) + content(adapter());
  }
};

// The adapter of the linear model, trained by plain loops in double.
class LinearAdapter {
 public:
  explicit LinearAdapter(const std::vector<float>& a) : a_(a.begin(), a.end()), b_(6, 0.0) {}

  void step(double rate) {
    std::array<double, 12> slope{};  // for W, in x out
    for (size_t n = 0; n < 12; ++n) {
      std::array<double, 3> p{};
      double sum = 0;
      for (size_t o = 0; o < 3; ++o) {
        p[o] = std::array{0.5, 0.0, -0.5}[o];
        for (size_t i = 0; i < 4; ++i) p[o] += x(n, i) * weight(i, o);
        sum += p[o] = std::exp(p[o]);
      }
      for (size_t o = 0; o < 3; ++o) {
        const double error = p[o] / sum - (n * n % 3 == o ? 1 : 0);
        for (size_t i = 0; i < 4; ++i) slope[i * 3 + o] += x(n, i) * error / 12;
      }
    }
    const auto a = a_, b = b_;
    for (size_t r = 0; r < 2; ++r) {
      for (size_t i = 0; i < 4; ++i) {
        for (size_t o = 0; o < 3; ++o) {
          a_[r * 4 + i] -= rate * 3 * b[o * 2 + r] * slope[i * 3 + o];
          b_[o * 2 + r] -= rate * 3 * a[r * 4 + i] * slope[i * 3 + o];
        }
      }
    }
  }
  double weight(size_t i, size_t o) const {
    double sum = linear_weights()[i * 3 + o];
    for (size_t r = 0; r < 2; ++r) sum += 3 * b_[o * 2 + r] * a_[r * 4 + i];
    return sum;
  }
  const std::vector<double>& a() const { return a_; }

 private:
  static double x(size_t n, size_t i) {
    return static_cast<double>((n * 4 + i) * 7 % 11) / 8 - 0.5;
  }
  std::vector<double> a_, b_;
};

TEST(AdaptersTest, TrainAsPlainLoopsDoAndAreMerged) {
  const AdapterRuns runs;
  Words one_rank = runs.tuned() + Words{"--seed", "3"};
  runs.files_of(one_rank + Words{"--steps", "1", "--lr", "0"});  // the weights as drawn
  LinearAdapter expected(tensor_of(runs.adapter(), "base_model.model.w.lora_A.weight"));
  for (int step = 0; step < 5; ++step) expected.step(0.5);
  for (const int count : {1, 2}) {
    runs.files_of(one_rank + Words{"--steps", "5"} + ranks(count));
    const auto a = tensor_of(runs.adapter(), "base_model.model.w.lora_A.weight");
    const auto merged = weight_of(runs.output(), "w");
    ASSERT_EQ(a.size(), 8u);
    ASSERT_EQ(merged.size(), 12u);
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(a[i], expected.a()[i], 1e-6);
    for (size_t i = 0; i < 12; ++i) EXPECT_NEAR(merged[i], expected.weight(i / 3, i % 3), 1e-6);
    EXPECT_EQ(weight_of(runs.output(), "b"), weight_of(runs.model(), "b"));
  }
}

TEST(AdaptersTest, SameBitsUnderEveryStrategyAndAfterABreak) {
  const AdapterRuns runs;
  const Words run = runs.tuned() + Words{"--lora-dropout", "0.3", "--train", "b"} + ranks(2);
  const std::string expected = runs.files_of(run + Words{"--steps", "6"});
  for (const char* strategy : {"no_shard", "zero1"}) {
    EXPECT_EQ(runs.files_of(run + Words{"--steps", "6", "--strategy", strategy}), expected);
  }
  const Words saving =
      run + Words{"--checkpoint-dir", runs / "ck", "--checkpoint-interval", "3step"};
  runs.files_of(saving + Words{"--steps", "3"});
  EXPECT_EQ(runs.files_of(saving + Words{"--steps", "6", "--resume", "latest"}), expected);
  const std::string exported = runs / "exported.onnx";
  const Finished run_export = Program::run(fsdp_run({"export", runs / "ck", "-o", exported}));
  EXPECT_EQ(run_export.status, 0) << run_export.err;
  EXPECT_EQ(content(exported), content(runs.output()));
}

TEST(AdaptersTest, StartFromAFileOfTheSameRankAlone) {
  const AdapterRuns runs;
  const std::string first = runs.files_of(runs.tuned() + Words{"--steps", "4"});
  const std::string start = runs / "start.safetensors";
  std::filesystem::copy(runs.adapter(), start);
  const Words from = runs.tuned() + Words{"--steps", "1", "--lr", "0", "--lora-from", start};
  EXPECT_EQ(runs.files_of(from), first);
  std::filesystem::remove(runs.output());
  std::filesystem::remove(runs.adapter());
  const Words refused = from + runs.writing();
  expect_refused(runs, refused + Words{"--lora-rank", "4"}, {start, "rank 2", "--lora-rank is 4"});
  expect_refused(runs, refused + Words{"--lora-from", runs.model()}, {"model.onnx", "safetensors"});
}

TEST(AdaptersTest, MistakesAreRefused) {
  const AdapterRuns runs;
  expect_refused(runs, runs.tuned() + Words{"--lora", "b"}, {"--lora b"});
  expect_refused(runs, runs.train() + Words{"--adapter", runs.adapter()}, {"--adapter", "--lora"});
  expect_refused(runs, runs.tuned() + Words{"--train", "w"}, {"--train", "'w'"});
  expect_refused(runs, runs.train() + Words{"--untie", "nothing*"}, {"--untie nothing*"});
  expect_refused(runs, runs.train() + Words{"--untie", "w"},
                 {"--untie w", "several nodes", "one with at most one reader"});
}

TEST(AdaptersTest, ANewHeadIsTrainedAndWritten) {
  const AdapterRuns runs;
  expect_trains(runs, {"--replace-head", "6"});
  const Finished run = Program::run(runs.train() + Words{"--replace-head", "6"} + ranks(2));
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(weight_of(runs.output(), "w").size(), 24u);
  EXPECT_EQ(weight_of(runs.output(), "b").size(), 6u);
}

// A run at rate 0 shows the drawn weights.
TEST(AdaptersTest, AnAddedHeadIsTrainedWithAndWithoutAdapters) {
  const AdapterRuns runs;
  const Words head{"--add-head", "6:kinds", "--steps", "4"};
  const auto run = [&](const Words& words) {
    const Finished finished = Program::run(words + head);
    EXPECT_EQ(finished.status, 0) << finished.err;
    std::vector<std::vector<float>> weights;
    for (const char* name : {"kinds.weight", "kinds.bias", "w", "b"}) {
      weights.push_back(weight_of(runs.output(), name));
    }
    EXPECT_EQ(weights[0].size(), 18u);
    EXPECT_EQ(weights[1].size(), 6u);
    return weights;
  };
  const auto drawn = run(runs.train() + Words{"--lr", "0"});
  EXPECT_EQ(drawn[2], linear_weights());
  const auto one = run(runs.train());
  EXPECT_EQ(run(runs.train() + ranks(2))[0].size(), one[0].size());
  for (size_t i = 0; i < 4; ++i) EXPECT_NE(one[i], drawn[i]) << i;
  const auto adapted = run(runs.tuned() + runs.writing());
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(adapted[i], drawn[i]) << i;
  EXPECT_EQ(adapted[3], drawn[3]) << "frozen by --lora";
  EXPECT_TRUE(tensor_of(runs.adapter(), "base_model.model.kinds.lora_A.weight").empty());
  expect_refused(runs, runs.train() + Words{"--add-head", "0"}, {"--add-head", "N or N:NAME"});
  expect_refused(runs, runs.train() + Words{"--add-head", "3:logits"},
                 {"--add-head 3:logits", "has a value 'logits' already"});
}

// As PEFT's modules_to_save: the adapter file also has weights that were trained whole.
TEST(AdaptersTest, WeightsTrainedWholeAreInTheAdapter) {
  const AdapterRuns runs;
  const Words words = runs.tuned() + Words{"--train", "b"};
  const std::string first =
      runs.files_of(words + Words{"--steps", "5", "--checkpoint-dir", runs / "ck"} + ranks(2));
  const std::vector<float> b = weight_of(runs.output(), "b");
  EXPECT_NE(b, weight_of(runs.model(), "b"));
  EXPECT_EQ(tensor_of(runs.adapter(), "base_model.model.b"), b);
  const std::string start = runs / "start.safetensors";
  std::filesystem::copy(runs.adapter(), start);
  const Words from{"--steps", "1", "--lr", "0", "--lora-from", start};
  EXPECT_TRUE(runs.files_of(words + from) == first);
  EXPECT_TRUE(runs.files_of(runs.tuned() + from + Words{"--checkpoint-dir", runs / "ck2"}) == first)
      << "frozen";
  std::filesystem::create_directory(runs / "other");
  const std::string other = runs / "other/adapter_model.safetensors";
  const std::string merged = runs / "merged.onnx";
  for (const char* folder : {"ck", "ck2"}) {
    const Finished run =
        Program::run(fsdp_run({"export", runs / folder, "--adapter", other, "-o", merged}));
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_TRUE(content(merged) + content(other) == first) << folder;
  }
  const Finished alone = Program::run(fsdp_run({"export", runs / "ck", "--adapter", other}));
  EXPECT_EQ(alone.status, 0) << alone.err;
  runs.write("rows/x.npy", linear_inputs());
  const auto predicted = [&](const Words& model, const std::string& rows) {
    const Finished run =
        Program::run(fsdp_run({"predict"}) + model + Words{"--data", runs / "rows", "-o", rows});
    EXPECT_EQ(run.status, 0) << run.err;
    const std::string bytes = content(rows);
    std::vector<float> values(12 * 3);
    EXPECT_GT(bytes.size(), values.size() * sizeof(float));
    std::memcpy(values.data(), bytes.data() + bytes.find('\n') + 1, values.size() * sizeof(float));
    return values;
  };
  const std::vector<float> expected = predicted({runs.output()}, runs / "file.npy");
  const Words adapted{runs.model(), "--lora", "all", "--lora-rank", "2", "--lora-from", start};
  const std::vector<float> found = predicted(adapted, runs / "adapted.npy");
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << i;
  EXPECT_GT(std::abs(predicted({runs.model()}, runs / "base.npy")[0] - expected[0]), 1e-3);
  std::filesystem::remove(runs.output());
  expect_refused(runs, words + from + Words{"--replace-head", "6", "--output", runs.output()},
                 {start, "base_model.model.b", "expected shape [6], found [3]"});
}

// A plain file next to the merged model has only adapters, and the first lines say so.
TEST(AdaptersTest, APlainFileHasAdaptersIfTheModelHasTheRest) {
  const AdapterRuns runs;
  const Words words = runs.tuned() + Words{"--train", "b", "--steps", "2"};
  const std::string plain = runs / "a.safetensors", kept = "base_model.model.b";
  const Finished both = Program::run(words + Words{"--output", runs.output(), "--adapter", plain,
                                                   "--checkpoint-dir", runs / "ck"});
  EXPECT_EQ(both.status, 0) << both.err;
  EXPECT_THAT(both.out, testing::HasSubstr("'b' is in " + runs.output()));
  EXPECT_TRUE(tensor_of(plain, kept).empty());
  EXPECT_FALSE(tensor_of(plain, "base_model.model.w.lora_A.weight").empty());
  const std::string bytes = content(plain), other = runs / "other.safetensors";
  const Finished exported = Program::run(
      fsdp_run({"export", runs / "ck", "--adapter", other, "-o", runs / "merged.onnx"}));
  EXPECT_EQ(exported.status, 0) << exported.err;
  EXPECT_TRUE(content(other) == bytes);
  const Finished alone = Program::run(words + Words{"--adapter", plain});
  EXPECT_EQ(alone.status, 0) << alone.err;
  EXPECT_FALSE(tensor_of(plain, kept).empty());
}

// Alpha is in the file, so the user need not repeat it; the folder is one as PEFT makes it.
// The folder is PEFT's, by a run and by `export`; a file that is there stays a file.
TEST(AdaptersTest, ANewNameWithoutAnEndingIsAFolder) {
  const AdapterRuns runs;
  const Words tuned = runs.tuned() + Words{"--steps", "2"};
  const auto expect_written = [](const Words& words) {
    const Finished run = Program::run(words);
    ASSERT_EQ(run.status, 0) << run.err;
  };
  expect_written(tuned + Words{"--adapter", runs / "a", "--checkpoint-dir", runs / "ck"});
  expect_written(fsdp_run({"export", runs / "ck", "--adapter", runs / "b/c"}));
  expect_written(tuned + Words{"--adapter", runs / "d.safetensors"});
  for (const char* folder : {"a", "b/c"}) {
    EXPECT_TRUE(content(runs / folder + "/adapter_model.safetensors") ==
                content(runs / "d.safetensors"))
        << folder;
    EXPECT_THAT(content(runs / folder + "/adapter_config.json"), testing::HasSubstr("\"r\": 2"));
  }
  expect_written(tuned + Words{"--lora-from", runs / "b/c", "--adapter", runs / "a"});
  EXPECT_FALSE(content(runs / "a/adapter_model.safetensors") == content(runs / "d.safetensors"));
  runs.write("file", "");
  expect_written(tuned + Words{"--adapter", runs / "file"});
  EXPECT_TRUE(content(runs / "file") == content(runs / "d.safetensors"));
}

TEST(AdaptersTest, AlphaIsThatOfTheFile) {
  const AdapterRuns runs;
  const std::string first = runs.files_of(runs.tuned() + Words{"--steps", "4"});
  const std::string start = runs / "start.safetensors";
  std::filesystem::copy(runs.adapter(), start);
  const Words train =
      fsdp_run({runs.model(), "--loss", "cross_entropy", "--global-batch-size", "12", "--lora",
                "all", "--lora-rank", "2", "--steps", "1", "--lr", "0"});
  EXPECT_TRUE(runs.files_of(train + Words{"--lora-from", start}) == first);
  const Finished other =
      Program::run(train + Words{"--lora-from", start, "--lora-alpha", "4"} + runs.writing());
  EXPECT_EQ(other.status, 0) << other.err;
  EXPECT_THAT(other.err, testing::HasSubstr("--lora-alpha 4: " + start + " was trained with 6"));
  EXPECT_NE(weight_of(runs.output(), "w"), weight_of(runs.model(), "w"));
  const Finished folder = Program::run(
      train + Words{"--lora-from", start, "--adapter", runs / "peft/", "--output", runs.output()});
  EXPECT_EQ(folder.status, 0) << folder.err;
  const auto config = nlohmann::json::parse(content(runs / "peft/adapter_config.json"));
  EXPECT_EQ(config.at("peft_type"), "LORA");
  EXPECT_EQ(config.at("r"), 2);
  EXPECT_EQ(config.at("lora_alpha"), 6);
  EXPECT_EQ(config.at("target_modules"), nlohmann::json::array({"w"}));
  EXPECT_TRUE(runs.files_of(train + Words{"--lora-from", runs / "peft"}) == first);
}

// Numbers that differ from the checkpoint's are named, whatever command reads the checkpoint.
TEST(AdaptersTest, OtherNumbersThanACheckpointsAreNamed) {
  const AdapterRuns runs;
  const Words model{runs.model(), "--loss", "cross_entropy"};
  const auto numbers = [](const std::string& rank, const std::string& alpha) {
    return Words{"--lora", "all", "--lora-rank", rank, "--lora-alpha", alpha};
  };
  const Words saving{"--checkpoint-dir", runs / "ck", "--steps", "2", "--batch-size", "12"};
  const Finished first = Program::run(fsdp_run(model) + numbers("2", "6") + saving);
  ASSERT_EQ(first.status, 0) << first.err;
  const Words from{"--resume", "latest", "--checkpoint-dir", runs / "ck"};
  for (const Words& words :
       {fsdp_run(model) + saving + Words{"--resume", "latest"}, fsdp_run({"eval"}) + model + from,
        fsdp_run({"check"}) + model + from, fsdp_run({"doctor"}) + model + from,
        fsdp_run({"predict"}) + model + from + Words{"-o", runs / "p.npy"}}) {
    const auto refuse = [&](const Words& other, const Words& facts) {
      const Finished run = Program::run(words + other);
      EXPECT_EQ(run.status, 2) << joined(words, " ");
      expect_one_line(run.err, facts);
    };
    refuse(numbers("2", "7"), {"--lora-alpha 6", "found 7"});
    refuse(numbers("3", "6"), {"--lora-rank 2", "found 3"});
    refuse({"--replace-head", "5"}, {"it was trained with --lora all"});
  }
}

// x w + b, twice in a row: a file in which both layers share b, or one with two copies.
SmallModel two_layers(bool shared) {
  SmallModel model = linear_model();
  const std::string second = shared ? "b" : "b.1";
  model.nodes.push_back(node("MatMul", {"logits", "v"}, {"more"}, "multiply_more"));
  model.nodes.push_back(node("Add", {"more", second}, {"last"}, "add_more"));
  model.initializers.push_back(
      tensor("v", kFloat, {3, 3}, raw<float>({1, 0.5f, 0, -0.5f, 1, 0.25f, 0, -0.25f, 1})));
  if (!shared)
    model.initializers.push_back(tensor("b.1", kFloat, {3}, raw<float>({0.5f, 0, -0.5f})));
  model.outputs = {declared("last", {-1, 3})};
  return model;
}

// Training does not write the values of an adapter that is frozen or that no loss reaches.
TEST(AdaptersTest, FilesHaveTheValuesThatTrainingDoesNotWrite) {
  const AdapterRuns runs;
  runs.write("model.onnx", two_layers(false).bytes());
  const std::string v = "base_model.model.v.lora_A.weight";
  const Words head{"--prediction", "logits", "--add-head", "3", "--steps", "4"};
  runs.files_of(runs.tuned() + head + ranks(2));
  const std::vector<float> drawn = tensor_of(runs.adapter(), v);
  EXPECT_EQ(drawn.size(), 6u);
  EXPECT_EQ(tensor_of(runs.adapter(), "base_model.model.v.lora_B.weight"),
            std::vector<float>(6, 0.0f));
  EXPECT_EQ(weight_of(runs.output(), "v"), weight_of(runs.model(), "v"));
  runs.files_of(runs.tuned() + Words{"--prediction", "last", "--freeze", "*.lora_A.weight",
                                     "--steps", "4", "--checkpoint-dir", runs / "ck"});
  EXPECT_EQ(tensor_of(runs.adapter(), v), drawn);
  EXPECT_NE(weight_of(runs.output(), "v"), weight_of(runs.model(), "v"));
  const Finished run = Program::run(fsdp_run({"export", runs / "ck", "-o", runs / "out.onnx"}));
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(content(runs / "out.onnx"), content(runs.output()));
}

// A checkpoint has trained values only; --lora-from of the same run has the others.
TEST(AdaptersTest, FrozenAdaptersOfAFileAreReadAgain) {
  const AdapterRuns runs;
  runs.files_of(runs.tuned() + Words{"--seed", "5", "--steps", "4"});
  const std::string start = runs / "start.safetensors";
  std::filesystem::copy(runs.adapter(), start);
  const Words last = {"--resume", runs / "ck/step-00000003"};
  runs.files_of(runs.tuned() + Words{"--lora-from", start, "--freeze", "w.lora_A.weight", "--steps",
                                     "3", "--checkpoint-dir", runs / "ck"});
  const Finished exported =
      Program::run(fsdp_run({"export", runs / "ck", "-o", runs / "out.onnx"}));
  EXPECT_EQ(exported.status, 0) << exported.err;
  EXPECT_EQ(content(runs / "out.onnx"), content(runs.output()));
  const Words data = {"--loss", "cross_entropy", "--data", runs / "data", "--json"};
  const auto loss = [&](const Words& words) {
    const Finished run = Program::run(fsdp_run(words) + data);
    EXPECT_EQ(run.status, 0) << run.err;
    return nlohmann::json::parse(run.out).at("loss").get<double>();
  };
  const double expected = loss({"eval", runs.output()});
  EXPECT_NEAR(loss(Words{"eval", runs.model()} + last), expected, 1e-6);
  const Words on = runs.tuned() + Words{"--freeze", "w.lora_A.weight", "--steps", "5"} + last;
  expect_refused(runs, on, {"'w.lora_A.weight' is not trained and had --lora-from", "found none"});
  EXPECT_NEAR(
      loss(Words{"eval", runs.model(), "--lora", "all", "--lora-rank", "2", "--lora-alpha", "6"} +
           last),
      expected, 1e-6);
}

TEST(AdaptersTest, UntiedCopiesTrainAsWeightsOfTheirOwn) {
  const AdapterRuns apart, shared;
  apart.write("model.onnx", two_layers(false).bytes());
  shared.write("model.onnx", two_layers(true).bytes());
  for (const int world : {1, 2}) {
    std::string bytes;
    for (const char* strategy : {"full_shard", "no_shard"}) {
      SCOPED_TRACE(format_text("{} ranks, {}", world, strategy));
      const Words more = ranks(world) + Words{"--strategy", strategy, "--steps", "5"};
      const Finished expected = Program::run(apart.train() + more);
      ASSERT_EQ(expected.status, 0) << expected.err;
      const Finished run = Program::run(shared.train() + more + Words{"--untie", "b"});
      ASSERT_EQ(run.status, 0) << run.err;
      for (const char* name : {"w", "v", "b", "b.1"}) {
        const auto values = weight_of(apart.output(), name);
        EXPECT_FALSE(values.empty()) << name;
        EXPECT_EQ(weight_of(shared.output(), name), values) << name;
      }
      EXPECT_NE(weight_of(shared.output(), "b"), weight_of(shared.output(), "b.1"));
      if (bytes.empty()) bytes = content(shared.output());
      EXPECT_TRUE(content(shared.output()) == bytes) << "another strategy, other bits";
    }
  }
}

// Running statistics that pass through Identity nodes, as PyTorch's older exporter writes them.
enum class Statistics { kDirect, kBehindIdentity, kSharedWithWeights };

SmallModel normalized(Statistics kind, bool trains) {
  SmallModel model = linear_model();
  const bool direct = kind == Statistics::kDirect, shared = kind == Statistics::kSharedWithWeights;
  const auto behind = [&](const std::string& from, const std::string& name) {
    if (direct) return from;
    model.nodes.insert(model.nodes.begin(), node("Identity", {from}, {name}, "copy_" + name));
    return name;
  };
  const std::string mean = behind(shared ? "beta" : "mean", "running_mean");
  const std::string variance = behind(shared ? "gamma" : "variance", "running_variance");
  std::string norm = node("BatchNormalization", {"x", "gamma", "beta", mean, variance},
                          trains ? Words{"n", "next_mean", "next_variance"} : Words{"n"}, "norm");
  if (trains) {
    norm += message(5, message(1, "training_mode") + number(3, 1) + number(20, 2));
  }
  model.nodes[direct ? 0 : 2] = node("MatMul", {"n", "w"}, {"products"}, "multiply");
  model.nodes.insert(model.nodes.begin() + (direct ? 0 : 2), norm);
  model.initializers.push_back(tensor("gamma", kFloat, {4}, raw<float>({1, 1, 1, 1})));
  model.initializers.push_back(tensor("beta", kFloat, {4}, raw<float>({0, 0, 0, 0})));
  if (shared) return model;
  model.initializers.push_back(tensor("mean", kFloat, {4}, raw<float>({0, 0, 0, 0})));
  model.initializers.push_back(tensor("variance", kFloat, {4}, raw<float>({1, 1, 1, 1})));
  return model;
}

TEST(RunningStatistics, AreKnownBehindIdentity) {
  for (const bool trains : {false, true}) {
    SCOPED_TRACE(trains);
    const AdapterRuns direct, behind, shared;
    direct.write("model.onnx", normalized(Statistics::kDirect, trains).bytes());
    behind.write("model.onnx", normalized(Statistics::kBehindIdentity, trains).bytes());
    shared.write("model.onnx", normalized(Statistics::kSharedWithWeights, trains).bytes());
    const Words rate{"--lr", "0.1"};
    expect_refused(shared, shared.train() + rate, {"'norm'", "--untie auto"});
    const std::vector<std::pair<const AdapterRuns*, Words>> runs = {
        {&direct, {}}, {&behind, {}}, {&shared, {"--untie", "auto"}}};
    for (const auto& [folder, more] : runs) {
      const Finished run = Program::run(folder->train() + rate + more);
      ASSERT_EQ(run.status, 0) << run.err;
    }
    for (const char* name : {"w", "b", "gamma", "beta", "mean", "variance"}) {
      const std::vector<float> expected = weight_of(direct.output(), name);
      EXPECT_FALSE(expected.empty()) << name;
      EXPECT_EQ(weight_of(behind.output(), name), expected) << name;
    }
    const std::vector<float> mean = weight_of(direct.output(), "mean");
    const std::vector<float> variance = weight_of(direct.output(), "variance");
    EXPECT_EQ(mean == std::vector<float>(4, 0.0f), !trains);
    // The first reader in the graph, here a statistic, keeps the initializer's name.
    for (const char* name : {"w", "b"}) {
      EXPECT_EQ(weight_of(shared.output(), name), weight_of(direct.output(), name)) << name;
    }
    const auto either = [&](const char* name, const char* copy) {
      return std::vector{weight_of(shared.output(), name), weight_of(shared.output(), copy)};
    };
    EXPECT_THAT(either("beta", "beta.1"),
                testing::UnorderedElementsAre(mean, weight_of(direct.output(), "beta")));
    EXPECT_THAT(either("gamma", "gamma.1"),
                testing::UnorderedElementsAre(variance, weight_of(direct.output(), "gamma")));
  }
}

}  // namespace adapters_test
}  // namespace ofsdp
