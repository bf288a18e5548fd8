// Adapters for weights that no plain product reads (tests/oracle/make_adapted.py): Attention's
// packed weight, FusedGemm's, 1x1 convolutions', a tied table. Losses and the trained adapter match
// PyTorch, bits are the same under every strategy, and the merged file computes the same as the
// adapted one.
#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "importer/file/onnx_file.h"
#include "importer/file/tensor_file.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace adapted_files_test {

using namespace onnx_bytes;  // NOLINT: the words of this test

struct Kind {
  const char* name;
  Words adapted;  // --lora
  bool mergeable = true;
};

const Kind kKinds[] = {
    {"packed", {"--lora", "*.qkv", "--lora", "up"}},
    {"pointwise", {"--lora", "down", "--lora", "mix"}},
    {"tied", {"--lora", "table.weight"}, false},
};

std::string file_of(const Kind& kind, const std::string& name) {
  return fixture(std::string("adapted/") + kind.name + "/" + name);
}

Words on(const Kind& kind, const std::string& model) {
  return fsdp_run({model, "--data", file_of(kind, "data"), "--loss", "cross_entropy", "--optimizer",
                   "sgd", "--lr", "0.1", "--momentum", "0.9", "--no-shuffle", "--device", "cpu",
                   "--global-batch-size", "8", "--epochs", "9"});
}

Words adapted(const Kind& kind, const std::string& from) {
  return on(kind, file_of(kind, "model.onnx")) + kind.adapted +
         Words{"--lora-rank", "2", "--lora-alpha", "6", "--lora-from", from};
}

std::vector<double> losses_in(const Words& words, const Folder& folder) {
  const Finished run = Program::run(words + Words{"--metrics", folder / "metrics.jsonl"});
  EXPECT_EQ(run.status, 0) << run.err;
  return run.status == 0 ? losses_of(folder / "metrics.jsonl") : std::vector<double>{};
}

std::map<std::string, std::vector<float>> tensors_of(const Result<TensorFile>& file) {
  std::map<std::string, std::vector<float>> tensors;
  if (!file.ok()) return tensors;
  for (const FileTensor& tensor : file->tensors()) {
    auto& values = tensors[tensor.name + tensor.shape.text()];
    values.resize(static_cast<size_t>(tensor.shape.numel()));
    EXPECT_TRUE(file->read(tensor, 0, values).ok());
  }
  return tensors;
}

class AdaptedFiles : public testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Files, AdaptedFiles, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(AdaptedFiles, LossesAndAdapterAreThoseOfPyTorch) {
  const Kind& kind = GetParam();
  std::vector<double> expected;
  std::ifstream lines(file_of(kind, "losses.txt"));
  for (double loss = 0; lines >> loss;) expected.push_back(loss);
  ASSERT_EQ(expected.size(), 6u);
  const auto trained = tensors_of(open_safetensors(file_of(kind, "trained.safetensors")));
  ASSERT_FALSE(trained.empty());
  for (const int world : {1, 2}) {
    std::string bytes;
    for (const char* strategy : {"full_shard", "no_shard"}) {
      SCOPED_TRACE(format_text("{} ranks, {}", world, strategy));
      const Folder folder;
      const std::string adapter = folder / "a.safetensors";
      const auto found =
          losses_in(adapted(kind, file_of(kind, "adapter.safetensors")) + ranks(world) +
                        Words{"--steps", "6", "--strategy", strategy, "--adapter", adapter},
                    folder);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i]) << "step " << i + 1;
      }
      const auto tensors = tensors_of(open_safetensors(adapter));
      ASSERT_EQ(tensors.size(), trained.size());
      for (const auto& [name, values] : trained) {
        ASSERT_TRUE(tensors.contains(name)) << name;
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_NEAR(tensors.at(name)[i], values[i], 1e-5) << name << " element " << i;
        }
      }
      if (bytes.empty()) bytes = content(adapter);
      EXPECT_TRUE(content(adapter) == bytes) << "another strategy, other bits";
    }
  }
}

TEST_P(AdaptedFiles, MergedFileComputesWhatTheAdaptedOneDoes) {
  const Kind& kind = GetParam();
  const std::string from = file_of(kind, "trained.safetensors");
  const Words still = {"--steps", "3", "--lr", "0"};
  for (const int world : {1, 2}) {
    SCOPED_TRACE(world);
    const Folder folder;
    const std::string merged = folder / "merged.onnx";
    const Words merging = adapted(kind, from) + ranks(world) + still + Words{"--output", merged};
    if (!kind.mergeable) {
      const Finished refused = Program::run(merging);
      EXPECT_EQ(refused.status, 2);
      expect_one_line(refused.err,
                      {"'table.weight'", "is also read by node 'x' (Gather)", "--adapter"});
      continue;
    }
    const auto expected = losses_in(merging, folder);
    const auto found = losses_in(on(kind, merged) + ranks(world) + still, folder);
    ASSERT_EQ(found.size(), 3u);
    ASSERT_EQ(expected.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(found[i], expected[i], 2e-6 * expected[i]);
    EXPECT_NE(content(merged), content(file_of(kind, "model.onnx")));
  }
}

// ONNX Runtime wrote adapter.onnx_adapter with the tensors of adapter.safetensors.
TEST_P(AdaptedFiles, AdapterFilesOfOnnxRuntimeAreReadAndWritten) {
  const Kind& kind = GetParam();
  const Folder folder;
  const auto file_after = [&](const std::string& from, const std::string& to, int world) {
    const Finished run =
        Program::run(adapted(kind, from) + ranks(world) + Words{"--steps", "3", "--adapter", to});
    EXPECT_EQ(run.status, 0) << run.err;
    return content(to);
  };
  const std::string plain = folder / "a.safetensors", ort = folder / "a.onnx_adapter";
  const std::string given = file_of(kind, "adapter.onnx_adapter");
  for (const int world : {1, 2}) {
    SCOPED_TRACE(world);
    const std::string expected = file_after(file_of(kind, "adapter.safetensors"), plain, world);
    EXPECT_TRUE(file_after(given, plain, world) == expected);
    file_after(given, ort, world);
    const auto written = tensors_of(open_ort_adapter(ort));
    EXPECT_EQ(written, tensors_of(open_safetensors(plain)));
    EXPECT_FALSE(written.empty());
  }
}

// `all` means only weights that hold one projection each.
TEST(AdaptersOfAll, LeaveWeightsThatHoldSeveralProjections) {
  const Folder folder;
  const Kind& packed = kKinds[0];
  const std::string written = folder / "a.safetensors";
  const Finished run = Program::run(on(packed, file_of(packed, "model.onnx")) + ranks(1) +
                                    Words{"--lora", "all", "--steps", "1", "--adapter", written});
  ASSERT_EQ(run.status, 0) << run.err;
  const auto file = open_safetensors(written);
  ASSERT_TRUE(file.ok());
  std::set<std::string> names;
  for (const FileTensor& tensor : file->tensors()) names.insert(tensor.name);
  EXPECT_TRUE(names.contains("base_model.model.up.lora_A.weight"));
  for (const std::string& name : names) EXPECT_EQ(name.find("qkv"), std::string::npos) << name;
}

// Weights in Constant nodes train to the same bits as initializers, and the written file has them
// in the nodes.
TEST(ConstantWeights, TrainAsInitializersDo) {
  ModelFolder folder;
  folder.write("constants.onnx", linear_model_of_constants().bytes());
  const auto trained = [&](const std::string& model) {
    const std::string output = folder / ("trained_" + model);
    const Finished run = Program::run(fsdp_run(
        {folder / model, "--data", folder / "data", "--loss", "cross_entropy", "--batch-size", "2",
         "--steps", "6", "--lr", "0.1", "--nproc-per-node", "2", "--output", output}));
    EXPECT_EQ(run.status, 0) << run.err;
    const Result<OnnxFile> file = OnnxFile::open(output);
    std::vector<float> values;
    if (!file.ok()) return values;
    for (const Initializer& weight : file->initializers()) {
      std::vector<float> part(static_cast<size_t>(weight.shape.numel()));
      EXPECT_TRUE(file->read(weight, 0, part).ok());
      values.insert(values.end(), part.begin(), part.end());
    }
    return values;
  };
  const std::vector<float> expected = trained("model.onnx"), found = trained("constants.onnx");
  ASSERT_EQ(expected.size(), 15u);
  EXPECT_NE(expected[0], linear_weights()[0]);
  EXPECT_EQ(found, expected);
  EXPECT_EQ(content(folder / "trained_constants.onnx").size(),
            content(folder / "constants.onnx").size());
}

// A Conv's bias with one number is a weight; a factor with one number is none.
TEST(ConstantWeights, OneNumberThatALayerReads) {
  SmallModel model = linear_model();
  model.nodes = {constant_node("w", kFloat, {4, 1}, raw(count_up(4))),
                 constant_node("b", kFloat, {1}, raw(count_up(1))),
                 constant_node("half", kFloat, {1}, raw<float>({0.5f})),
                 node("Gemm", {"x", "w", "b"}, {"product"}, "multiply"),
                 node("Mul", {"product", "half"}, {"logits"}, "scale")};
  model.initializers.clear();
  const ModelFolder folder;
  folder.write("one.onnx", model.bytes());
  const Result<OnnxFile> file = OnnxFile::open(folder / "one.onnx");
  ASSERT_TRUE(file.ok());
  std::vector<std::string> names;
  for (const Initializer& weight : file->initializers()) names.push_back(weight.name);
  EXPECT_EQ(names, (std::vector<std::string>{"w", "b"}));
}

TEST(ConstantWeights, DoctorNamesThoseThatStay) {
  SmallModel model = linear_model_of_constants();
  model.nodes.push_back(node("Mul", {"logits", "gain"}, {"y"}, "scale"));
  model.initializers = {tensor("gain", kFloat, {3}, raw<float>({1, 2, 3}))};
  model.outputs = {declared("y", {-1, 3})};
  const ModelFolder folder;
  folder.write("model.onnx", model.bytes());
  const Words doctor{OFSDP_FSDP_RUN,  "doctor", folder.model(), "--data",
                     folder / "data", "--loss", "cross_entropy"};
  const Finished found = Program::run(doctor);
  EXPECT_NE(found.out.find("2 Constant nodes that layers read as weights: 'w', 'b'"),
            std::string::npos)
      << found.out << found.err;
  EXPECT_NE(found.out.find("--train '*' trains them, too"), std::string::npos);
  const Finished all = Program::run(doctor + Words{"--train", "*"});
  EXPECT_EQ(all.out.find("Constant nodes"), std::string::npos) << all.out;
}

// Files of tests/oracle/make_control.py, which sum or average seven time steps.
TEST(ControlFlow, SizesOfTheDataDecideIt) {
  constexpr size_t kSamples = 4, kSteps = 7, kWidth = 5, kOutputs = 4;
  ModelFolder folder;
  std::vector<float> x(kSamples * kSteps * kWidth);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 11) / 8 - 0.5f;
  folder.write("steps/x.npy", testing_data::npy("<f4", "(4, 7, 5)", x));
  folder.write("steps/labels.npy", testing_data::npy("<f4", "(4, 4)", std::vector<float>(16)));
  for (const std::string name : {"if", "loop", "slice", "less", "while"}) {
    const double scale = name == "if" ? 1.0 / kSteps : 1;
    double sum = 0;
    for (size_t n = 0; n < kSamples * kOutputs; ++n) {
      double y = 0;
      for (size_t k = 0; k < kSteps * kWidth; ++k) {
        const double w = -1 + 2.0 / 19 * static_cast<double>(k % kWidth * kOutputs + n % kOutputs);
        y += scale * w * static_cast<double>(x[n / kOutputs * kSteps * kWidth + k]);
      }
      sum += y * y;
    }
    const std::string metrics = folder / (name + ".jsonl");
    const Finished run = Program::run(fsdp_run(
        {fixture("control/" + name + ".onnx"), "--data", folder / "steps", "--loss", "mse",
         "--batch-size", "2", "--nproc-per-node", "2", "--steps", "1", "--metrics", metrics}));
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_NEAR(losses_of(metrics)[0], sum / (kSamples * kOutputs), 1e-5 * sum) << name;
  }
}

// y = x w + rate; a branch that reads `rate` decides the factor for x.
TEST(ControlFlow, AnInputThatIsTheSameInEveryBatchDecidesIt) {
  ModelFolder folder;
  const auto branch = [](const std::string& name, const std::string& factor) {
    const std::string graph = message(1, node("Mul", {"x", factor}, {name}, name)) +
                              message(2, name) + message(12, message(1, name));
    constexpr uint64_t kGraph = 5;
    return message(5, message(1, name == "fast" ? "then_branch" : "else_branch") +
                          number(20, kGraph) + message(6, graph));
  };
  SmallModel model = linear_model();
  model.nodes = {
      node("Equal", {"rate", "sixteen"}, {"is_fast"}, "compare"),
      node("If", {"is_fast"}, {"scaled"}, "choose") + branch("fast", "one") + branch("slow", "two"),
      node("MatMul", {"scaled", "w"}, {"products"}, "multiply"),
      node("Add", {"products", "b"}, {"logits"}, "add")};
  model.initializers.push_back(tensor("sixteen", kInt64, {}, raw<int64_t>({16000})));
  model.initializers.push_back(tensor("one", kFloat, {}, raw<float>({1})));
  model.initializers.push_back(tensor("two", kFloat, {}, raw<float>({2})));
  model.inputs.push_back(declared("rate", {}, kInt64));
  folder.write("rates.onnx", model.bytes());
  const auto trained = [&](const std::string& file, const Words& more) {
    const std::string metrics = folder / "metrics.jsonl";
    const Finished run =
        Program::run(fsdp_run({folder / file, "--data", folder / "data", "--loss", "cross_entropy",
                               "--steps", "2", "--output", folder.output(), "--metrics", metrics}) +
                     more);
    EXPECT_EQ(run.status, 0) << run.err;
    return losses_of(metrics);
  };
  const auto plain = trained("model.onnx", {});
  EXPECT_EQ(trained("rates.onnx", {"--input", "rate=16000"}), plain);
  EXPECT_NE(trained("rates.onnx", {"--input", "rate=8000"}), plain);
  const Finished predicted =
      Program::run({OFSDP_FSDP_RUN, "predict", folder / "rates.onnx", "--input", "rate=8000",
                    "--data", folder / "data", "-o", folder / "y.npy"});
  EXPECT_EQ(predicted.status, 0) << predicted.err;
}

// y = x k + b; `rate` decides which branch's `k` it is. Both branches have the name.
class BranchWeights : public testing::Test {
 protected:
  // `in_nodes`: all weights are Constant nodes, k inside a separate If. `outside`: branches have
  // their data in another file, also those of a shape.
  void write(bool in_nodes, bool outside = false) const {
    const auto graph = [](const std::string& fields, const std::string& output) {
      return fields + message(2, output) + message(12, message(1, output));
    };
    const auto attribute = [](const std::string& name, const std::string& graph) {
      constexpr uint64_t kGraph = 5;
      return message(5, message(1, name) + number(20, kGraph) + message(6, graph));
    };
    const std::string both = bytes_of(linear_weights()) + bytes_of(count_up(12));
    folder_.write("k.bin", both + both + bytes_of(std::vector<int64_t>{-1, 3}));
    // `from`: where a branch of the inner If has its data.
    const auto product = [&](const std::string& name, const std::vector<float>& weights, int from) {
      const int offset = name == "fast" ? from : from + 48;
      const std::string data =
          outside ? external("k.bin", std::to_string(offset), "48") : raw(weights);
      std::string fields = in_nodes ? message(1, constant_node("k", kFloat, {4, 3}, data))
                                    : message(5, tensor("k", kFloat, {4, 3}, data));
      const std::string made = outside ? name + "_flat" : name;
      fields += message(1, node("MatMul", {"x", "k"}, {made}, made));
      if (!outside) return graph(fields, name);
      fields += message(5, tensor("sizes", kInt64, {2}, external("k.bin", "192", "16")));
      return graph(fields + message(1, node("Reshape", {made, "sizes"}, {name}, name)), name);
    };
    const auto branch = [&](const std::string& name, const std::vector<float>& weights) {
      if (!in_nodes) return product(name, weights, 0);
      return graph(message(1, node("If", {"always"}, {name + "_out"}, name + "_in") +
                                  attribute("then_branch", product(name, weights, 0)) +
                                  attribute("else_branch", product(name, weights, 96))),
                   name + "_out");
    };
    SmallModel model = in_nodes ? linear_model_of_constants() : linear_model();
    if (in_nodes) model.nodes.erase(model.nodes.begin());
    if (!in_nodes) model.initializers.erase(model.initializers.begin());
    model.nodes.resize(in_nodes ? 1 : 0);
    model.nodes.push_back(node("Equal", {"rate", "sixteen"}, {"is_fast"}, "compare"));
    model.nodes.push_back(node("If", {"is_fast"}, {"products"}, "choose") +
                          attribute("then_branch", branch("fast", linear_weights())) +
                          attribute("else_branch", branch("slow", count_up(12))));
    model.nodes.push_back(node("Add", {"products", "b"}, {"logits"}, "add"));
    model.initializers.push_back(tensor("sixteen", kInt64, {}, raw<int64_t>({16000})));
    model.initializers.push_back(tensor("always", 9, {}, message(9, std::string("\1"))));
    model.inputs.push_back(declared("rate", {}, kInt64));
    folder_.write("branches.onnx", model.bytes());
  }

  // Returns the trained file's weights by name.
  std::map<std::string, std::vector<float>> trained(const std::string& model,
                                                    const Words& more = {}) const {
    const Finished run = Program::run(
        fsdp_run({folder_ / model, "--data", folder_ / "data", "--loss", "cross_entropy",
                  "--batch-size", "2", "--steps", "6", "--lr", "0.1", "--nproc-per-node", "2",
                  "--output", folder_ / ("trained_" + model)}) +
        more);
    EXPECT_EQ(run.status, 0) << run.err;
    return weights_of(folder_ / ("trained_" + model));
  }

  static std::map<std::string, std::vector<float>> weights_of(const std::string& path) {
    std::map<std::string, std::vector<float>> values;
    const Result<OnnxFile> file = OnnxFile::open(path);
    if (!file.ok()) return values;
    for (const Initializer& weight : file->initializers()) {
      auto& numbers = values[weight.name];
      numbers.resize(static_cast<size_t>(weight.shape.numel()));
      EXPECT_TRUE(file->read(weight, 0, numbers).ok());
    }
    return values;
  }

  ModelFolder folder_;
};

TEST_F(BranchWeights, OfTheBranchThatRunsTrainAndTheOthersStay) {
  const auto plain = trained("model.onnx");
  for (const bool in_nodes : {false, true}) {
    SCOPED_TRACE(in_nodes ? "Constant nodes" : "initializers");
    write(in_nodes);
    const std::string then =
        in_nodes ? "choose/then_branch/fast_in/then_branch/k" : "choose/then_branch/k";
    const std::string other =
        in_nodes ? "choose/else_branch/slow_in/then_branch/k" : "choose/else_branch/k";
    const auto before = weights_of(folder_ / "branches.onnx");
    ASSERT_EQ(before.size(), in_nodes ? 5u : 3u);
    const auto found = trained("branches.onnx", {"--input", "rate=16000"});
    ASSERT_TRUE(found.contains(then) && found.contains(other));
    EXPECT_EQ(found.at(then), plain.at("w"));
    EXPECT_EQ(found.at("b"), plain.at("b"));
    EXPECT_EQ(found.at(other), count_up(12));
    EXPECT_EQ(content(folder_ / "trained_branches.onnx").size(),
              content(folder_ / "branches.onnx").size());
    const auto slow = trained("branches.onnx", {"--input", "rate=8000"});
    EXPECT_EQ(slow.at(then), before.at(then));
    EXPECT_NE(slow.at(other), count_up(12));
  }
}

// The data of branches in another file, which the trained file has under another name.
TEST_F(BranchWeights, InAnotherFileTrain) {
  const auto plain = trained("model.onnx");
  for (const bool in_nodes : {false, true}) {
    SCOPED_TRACE(in_nodes ? "Constant nodes" : "initializers");
    write(in_nodes, true);
    const std::string then =
        in_nodes ? "choose/then_branch/fast_in/then_branch/k" : "choose/then_branch/k";
    const std::string other =
        in_nodes ? "choose/else_branch/slow_in/then_branch/k" : "choose/else_branch/k";
    const auto found = trained("branches.onnx", {"--input", "rate=16000"});
    ASSERT_TRUE(found.contains(then) && found.contains(other));
    EXPECT_EQ(found.at(then), plain.at("w"));
    EXPECT_EQ(found.at("b"), plain.at("b"));
    EXPECT_EQ(found.at(other), count_up(12));
    const std::string data = content(folder_ / "trained_branches.onnx.data");
    EXPECT_EQ(data.substr(48), content(folder_ / "k.bin").substr(48));
    const auto again = trained("trained_branches.onnx", {"--input", "rate=8000"});
    EXPECT_EQ(again.at(then), plain.at("w"));
    EXPECT_NE(again.at(other), count_up(12));
  }
}

// Adapters inside a branch draw and train as those of the same product without an If; the file gets
// them merged, and another run starts from the saved ones.
TEST_F(BranchWeights, GetAdapters) {
  for (const bool in_nodes : {false, true}) {
    SCOPED_TRACE(in_nodes ? "Constant nodes" : "initializers");
    write(in_nodes);
    const std::string weight =
        in_nodes ? "choose/then_branch/fast_in/then_branch/k" : "choose/then_branch/k";
    const std::string other =
        in_nodes ? "choose/else_branch/slow_in/then_branch/k" : "choose/else_branch/k";
    SmallModel plain = linear_model();
    plain.nodes[0] = node("MatMul", {"x", weight}, {"products"}, "multiply");
    plain.initializers[0] = tensor(weight, kFloat, {4, 3}, raw(linear_weights()));
    folder_.write("plain.onnx", plain.bytes());
    const std::string file = folder_ / "a.safetensors";
    const Words fast{"--input", "rate=16000"};
    for (const Words& more : {Words{"--lora", "all"}, Words{"--lora", weight, "--train", "b"}}) {
      const Words words = more + Words{"--lora-rank", "2"};
      const auto expected = trained("plain.onnx", words);
      const auto found = trained("branches.onnx", words + fast + Words{"--adapter", file});
      EXPECT_NE(expected.at(weight), linear_weights());
      EXPECT_EQ(found.at(weight), expected.at(weight));
      EXPECT_EQ(found.at("b"), expected.at("b"));
      EXPECT_EQ(found.at(other), count_up(12));
      EXPECT_EQ(content(folder_ / "trained_branches.onnx").size(),
                content(folder_ / "branches.onnx").size());
      const auto again =
          trained("branches.onnx", words + fast + Words{"--lora-from", file, "--lr", "0"});
      EXPECT_EQ(again.at(weight), expected.at(weight));
    }
    // The branch that does not run keeps its weight, and a weight of that name is no error.
    const auto slow = trained("branches.onnx", {"--lora", "all", "--input", "rate=8000"});
    EXPECT_EQ(slow.at(weight), linear_weights());
    EXPECT_NE(slow.at(other), count_up(12));
  }
}

// PyTorch's older exporter names a frozen module's weights so. The new head is no weight of the
// module, so they train under it.
TEST(FrozenModule, TrainsUnderANewHead) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  const std::string w = "/Constant_output_0", b = "/Constant_1_output_0";
  model.nodes = {node("MatMul", {"x", w}, {"products"}, "multiply"),
                 node("Add", {"products", b}, {"logits"}, "add")};
  model.initializers = {tensor(w, kFloat, {4, 3}, raw(linear_weights())),
                        tensor(b, kFloat, {3}, raw<float>({0.5f, 0.f, -0.5f}))};
  folder.write("model.onnx", model.bytes());
  const Finished run = Program::run(folder.train() + Words{"--add-head", "3"});
  ASSERT_EQ(run.status, 0) << run.err;
  const auto file = OnnxFile::open(folder.output());
  ASSERT_TRUE(file.ok());
  for (const Initializer& weight : file->initializers()) {
    if (weight.name != w) continue;
    std::vector<float> values(12);
    ASSERT_TRUE(file->read(weight, 0, values).ok());
    EXPECT_NE(values, linear_weights());
  }
}

TEST(ControlFlow, WithoutDataItIsRefused) {
  const ModelFolder folder;
  expect_refused(folder,
                 fsdp_run({fixture("control/loop.onnx"), "--data", "synthetic", "--loss", "mse",
                           "--steps", "1"}),
                 {"Loop", "its number of iterations is not known before the run"});
}

}  // namespace adapted_files_test
}  // namespace ofsdp
