// Quantized files from ONNX Runtime's tools (tests/oracle/make_quantized.py): the losses of
// PyTorch, the rounded masters as integers in the trained file, the same bits under every strategy,
// and one line for impossible settings.
#include <cmath>
#include <fstream>

#include "importer/file/onnx_file.h"
#include "tests/support/checkpoint_runs.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace quantized_test {

using namespace onnx_bytes;

// A value on a border between two integers may fall on the other side in float32.
constexpr double kTolerance = 2e-3;

std::string parent_folder(const std::string& name) { return fixture("quantized/" + name); }

Words train(const std::string& name, const Words& more = {}) {
  const std::string folder = parent_folder(name);
  return fsdp_run({folder + "/model.onnx", "--data", folder + "/data", "--loss", "cross_entropy",
                   "--optimizer", "sgd", "--lr", "0.02", "--momentum", "0.9", "--no-shuffle",
                   "--global-batch-size", "8", "--steps", "6", "--epochs", "9"}) +
         more;
}

// At train()'s rate some scales would become negative.
Words learned_scales() { return {"--qat-scales", "learned", "--lr", "0.002"}; }

std::vector<double> recorded(const std::string& name, const std::string& file) {
  std::vector<double> losses;
  std::ifstream lines(parent_folder(name) + "/" + file);
  for (double loss = 0; lines >> loss;) losses.push_back(loss);
  return losses;
}

void expect_losses(const Words& words, const std::vector<double>& expected) {
  const Folder folder;
  const std::string metrics = folder / "metrics.jsonl";
  const Finished run = Program::run(words + Words{"--metrics", metrics});
  ASSERT_EQ(run.status, 0) << run.err;
  const std::vector<double> found = losses_of(metrics);
  ASSERT_EQ(found.size(), expected.size());
  ASSERT_FALSE(found.empty());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], kTolerance * expected[i]) << "step " << i + 1;
  }
}

struct Case {
  const char* name;
  int world;
};

class QuantizedTest : public testing::TestWithParam<Case> {};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const char* name : {"pairs", "pairs_channel", "pairs_4bit", "qlinear", "qlinear_channel",
                           "qlinear_mlp", "qlinear_mixed", "multiplied"}) {
    for (const int world : {1, 2}) list.push_back({name, world});
  }
  // Their scales depend on a rank's micro-batch.
  for (const char* name :
       {"dynamic", "dynamic_channel", "dynamic_lstm", "dynamic_lstm_channel", "integer_bias"}) {
    list.push_back({name, 1});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Files, QuantizedTest, testing::ValuesIn(cases()), [](const auto& info) {
  return format_text("{}_on_{}", info.param.name, info.param.world);
});

TEST_P(QuantizedTest, LossesAreThoseOfPyTorch) {
  const auto [name, world] = GetParam();
  expect_losses(train(name, ranks(world)), recorded(name, "losses.txt"));
}

TEST(QuantizedScalesTest, LearnedScalesGiveTheLossesOfPyTorch) {
  for (const std::string name : {"pairs", "multiplied"}) {
    for (const int world : {1, 2}) {
      SCOPED_TRACE(format_text("{} on {}", name, world));
      expect_losses(train(name, ranks(world) + learned_scales()), recorded(name, "learned.txt"));
    }
  }
}

OnnxFile opened(const std::string& path) {
  auto file = OnnxFile::open(path);
  EXPECT_TRUE(file.ok()) << path;
  return *std::move(file);
}

std::vector<float> values_of(const OnnxFile& file, const Initializer& initializer) {
  std::vector<float> values(static_cast<size_t>(initializer.shape.numel()));
  EXPECT_TRUE(file.read(initializer, 0, values).ok());
  return values;
}

// Derivatives against the interpreter in double, which rounds in the same way.
TEST(QuantizedFileTest, DynamicFilesAgreeWithTheInterpreter) {
  for (const std::string name : {"dynamic_lstm", "dynamic_lstm_channel", "integer_bias"}) {
    const std::string folder = parent_folder(name);
    const Finished run =
        Program::run(fsdp_run({"check", folder + "/model.onnx", "--data", folder + "/data",
                               "--loss", "cross_entropy", "--batch-size", "8"}));
    EXPECT_EQ(run.status, 0) << name << run.out << run.err;
  }
}

// Only integer weights and biases change; scales change only if they are trained.
TEST(QuantizedFileTest, TrainedFileDiffersInWeightsOnly) {
  for (const std::string name : {"pairs", "qlinear", "multiplied"}) {
    for (const std::string scales : {"fixed", "learned"}) {
      SCOPED_TRACE(name + " " + scales);
      const CheckpointRuns runs;
      runs.trained(train(
          name, ranks(2) + learned_scales() + Words{"--qat-scales", scales, "--steps", "24"}));
      const OnnxFile before = opened(parent_folder(name) + "/model.onnx");
      const OnnxFile after = opened(runs / "trained.onnx");
      ASSERT_EQ(before.initializers().size(), after.initializers().size());
      size_t weights = 0;
      for (size_t i = 0; i < after.initializers().size(); ++i) {
        const Initializer& weight = after.initializers()[i];
        const bool changed =
            values_of(before, before.initializers()[i]) != values_of(after, weight);
        if (weight.quantization != nullptr) {
          ++weights;
          EXPECT_TRUE(changed) << weight.name;
        } else if (weight.name.ends_with("scale")) {
          EXPECT_EQ(changed, scales == "learned") << weight.name;
        }
      }
      EXPECT_GE(weights, 3u);
    }
  }
}

TEST(QuantizedFileTest, SameBitsUnderEveryStrategyAndAfterABreak) {
  for (const std::string name : {"pairs_channel", "pairs_4bit", "qlinear_mixed", "dynamic",
                                 "dynamic_lstm_channel", "multiplied"}) {
    SCOPED_TRACE(name);
    const bool dynamic = name.starts_with("dynamic");
    const Words words = train(name, ranks(2) + (dynamic ? Words{} : learned_scales()));
    const CheckpointRuns plain;
    const std::string expected = plain.trained(words);
    for (const std::string strategy : {"shard_grad_op", "zero1", "no_shard"}) {
      EXPECT_TRUE(plain.trained(words + Words{"--strategy", strategy}) == expected) << strategy;
    }
    const CheckpointRuns runs;
    runs.trained(words + runs.saving() + Words{"--steps", "3"});
    EXPECT_TRUE(runs.trained(words + runs.resuming()) == expected);
    const std::string exported = runs / "exported.onnx";
    const Finished run = Program::run(fsdp_run({"export", runs.dir(), "-o", exported}));
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_TRUE(content(exported) == expected);
  }
}

constexpr int kInt8 = 3, kUInt8 = 2;

// Integers that Cast and Mul turn into floats are a weight if a product or a table reads it and the
// numbers form a quantization. Otherwise they are constants in a formula.
TEST(QuantizedFileTest, CastAndMulOfAWeight) {
  const auto weights_of = [](const SmallModel& model) {
    const ModelFolder folder;
    folder.write("model.onnx", model.bytes());
    Words names;
    const OnnxFile file = opened(folder.model());
    for (const Initializer& weight : file.initializers()) {
      if (weight.quantization != nullptr) names.push_back(weight.name);
    }
    return names;
  };
  const auto cast = [](const std::string& from, const std::string& to) {
    return node("Cast", {from}, {to}, to) +
           message(5, message(1, "to") + number(3, kFloat) + number(20, 2));
  };
  SmallModel model = linear_model();
  model.nodes = {cast("w", "floats"), node("Sub", {"floats", "z"}, {"shifted"}, "shift"),
                 node("Mul", {"s", "shifted"}, {"v"}, "scale"),
                 node("MatMul", {"x", "v"}, {"products"}, "multiply"),
                 node("Add", {"products", "b"}, {"logits"}, "add")};
  model.initializers[0] =
      tensor("w", kInt8, {4, 3}, raw<int8_t>({1, -2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}));
  model.initializers.push_back(tensor("s", kFloat, {1, 3}, raw<float>({0.1f, 0.2f, 0.3f})));
  model.initializers.push_back(tensor("z", kFloat, {}, raw<float>({3})));
  EXPECT_EQ(weights_of(model), Words{"w"});
  const auto with = [&](size_t initializer, const std::string& tensor) {
    SmallModel other = model;
    other.initializers[initializer] = tensor;
    return other;
  };
  const Words none;
  EXPECT_EQ(weights_of(with(2, tensor("s", kFloat, {1, 3}, raw<float>({0.1f, -0.2f, 0.3f})))),
            Words{"w"});
  EXPECT_EQ(weights_of(with(2, tensor("s", kFloat, {1, 3}, raw<float>({0.1f, 0, 0.3f})))), none);
  EXPECT_EQ(weights_of(with(2, tensor("s", kFloat, {4, 3}, raw<float>(std::vector<float>(12, 1))))),
            none);
  EXPECT_EQ(weights_of(with(3, tensor("z", kFloat, {}, raw<float>({0.5f})))), none);
  SmallModel other = model;
  other.nodes[3] = node("Add", {"x", "v"}, {"products"}, "no_product");
  EXPECT_EQ(weights_of(other), none);
  other = model;
  other.nodes.push_back(node("Relu", {"floats"}, {"more"}, "reads"));
  EXPECT_EQ(weights_of(other), none);
}

// linear_model() with a pair at the input and an int8 weight.
SmallModel quantized_model() {
  SmallModel model = linear_model();
  model.nodes = {node("QuantizeLinear", {"x", "s", "z"}, {"q"}, "quantize"),
                 node("DequantizeLinear", {"q", "s", "z"}, {"d"}, "dequantize"),
                 node("DequantizeLinear", {"w", "ws", "wz"}, {"v"}, "weight"),
                 node("MatMul", {"d", "v"}, {"products"}, "multiply"),
                 node("Add", {"products", "b"}, {"logits"}, "add")};
  model.initializers[0] =
      tensor("w", kInt8, {4, 3}, raw<int8_t>({1, -2, 3, 40, -50, 60, 7, 8, 9, -100, 110, 120}));
  model.initializers.push_back(tensor("s", kFloat, {}, raw<float>({0.1f})));
  model.initializers.push_back(tensor("z", kUInt8, {}, raw<uint8_t>({7})));
  model.initializers.push_back(tensor("ws", kFloat, {}, raw<float>({0.01f})));
  model.initializers.push_back(tensor("wz", kInt8, {}, raw<int8_t>({0})));
  return model;
}

TEST(QuantizedRefusalTest, GoodModelTrains) {
  const ModelFolder folder;
  folder.write("model.onnx", quantized_model().bytes());
  expect_trains(folder);
}

// With a negative scale and negated integers the weights are the same, fixed or learned.
TEST(QuantizedFileTest, NegativeScales) {
  for (const std::string scales : {"fixed", "learned"}) {
    std::vector<std::vector<double>> losses;
    std::vector<std::vector<float>> weights;
    for (const bool negative : {false, true}) {
      const ModelFolder folder;
      SmallModel model = quantized_model();
      if (negative) {
        model.initializers[0] =
            tensor("w", kInt8, {4, 3},
                   raw<int8_t>({-1, 2, -3, -40, 50, -60, -7, -8, -9, 100, -110, -120}));
        model.initializers[4] = tensor("ws", kFloat, {}, raw<float>({-0.01f}));
      }
      folder.write("model.onnx", model.bytes());
      const std::string metrics = folder / "metrics.jsonl";
      const Finished run = Program::run(
          folder.train() + Words{"--qat-scales", scales, "--steps", "3", "--metrics", metrics});
      ASSERT_EQ(run.status, 0) << run.err;
      losses.push_back(losses_of(metrics));
      const OnnxFile after = opened(folder.output());
      weights.push_back(values_of(after, after.initializers()[0]));
    }
    EXPECT_EQ(losses[0], losses[1]) << scales;
    EXPECT_EQ(weights[0], weights[1]) << scales;
  }
}

// A normalization with variances rounded to 0. The quotients by their roots are infinite and
// clipped, so the gradient is 0, not 0 times infinity.
TEST(QuantizedFileTest, VarianceThatIsRoundedTo0) {
  const ModelFolder folder;
  SmallModel model = quantized_model();
  model.nodes.resize(4);
  const auto pair = [&](const std::string& from, const std::string& scale, const std::string& to) {
    model.nodes.push_back(node("QuantizeLinear", {from, scale, "z"}, {to + "_q"}, to + "_q"));
    model.nodes.push_back(node("DequantizeLinear", {to + "_q", scale, "z"}, {to}, to));
  };
  model.nodes.push_back(node("Mul", {"products", "products"}, {"squares"}, "square"));
  pair("squares", "rough", "variances");
  model.nodes.push_back(node("Sqrt", {"variances"}, {"roots"}, "root"));
  model.nodes.push_back(node("Div", {"products", "roots"}, {"normal"}, "divide"));
  pair("normal", "s", "clipped");
  model.nodes.push_back(node("Add", {"clipped", "b"}, {"logits"}, "add"));
  model.initializers.push_back(tensor("rough", kFloat, {}, raw<float>({1e3f})));
  folder.write("model.onnx", model.bytes());
  const Finished run = Program::run(folder.train());
  ASSERT_EQ(run.status, 0) << run.err;
  const OnnxFile before = opened(folder.model()), after = opened(folder.output());
  for (const size_t i : {0u, 1u}) {  // the integer weight, then the bias
    EXPECT_EQ(
        values_of(before, before.initializers()[i]) == values_of(after, after.initializers()[i]),
        i == 0);
  }
}

TEST(QuantizedRefusalTest, ScalesThatAreNoneAndTypesThatDiffer) {
  const ModelFolder folder;
  const auto refused = [&](size_t initializer, const std::string& tensor, const Words& facts) {
    SmallModel model = quantized_model();
    model.initializers[initializer] = tensor;
    folder.write("model.onnx", model.bytes());
    expect_refused(folder, Words{folder.model()} + facts);
  };
  refused(2, tensor("s", kFloat, {}, raw<float>({0})), {"'s'", "other than 0"});
  refused(4, tensor("ws", kFloat, {}, raw<float>({0})), {"'ws'", "other than 0"});
  refused(5, tensor("wz", kUInt8, {}, raw<uint8_t>({0})), {"'wz'", "int8", "uint8"});
  refused(4, tensor("ws", kFloat, {5}, raw<float>({1, 1, 1, 1, 1})),
          {"'wz'", "scales (5)", "found 1"});
}

TEST(QuantizedRefusalTest, ScaleThatANodeMakes) {
  const ModelFolder folder;
  SmallModel model = quantized_model();
  model.nodes.insert(model.nodes.begin(), node("Add", {"s", "s"}, {"twice"}, "double"));
  model.nodes[1] = node("QuantizeLinear", {"x", "twice", "z"}, {"q"}, "quantize");
  folder.write("model.onnx", model.bytes());
  expect_refused(folder, {folder.model(), "quantize", "constant", "'twice'"});
}

TEST(QuantizedRefusalTest, IntegersThatAnotherOperatorReads) {
  const ModelFolder folder;
  SmallModel model = quantized_model();
  model.nodes[1] = node("Cast", {"q"}, {"d"}, "reads") +
                   message(5, message(1, "to") + number(3, 1) + number(20, 2));
  folder.write("model.onnx", model.bytes());
  expect_refused(folder, {folder.model(), "reads", "DequantizeLinear", "'q'"});
}

TEST(QuantizedRefusalTest, ProductOfIntegersWithoutItsMul) {
  const ModelFolder folder;
  SmallModel model = quantized_model();
  model.nodes = {node("DynamicQuantizeLinear", {"x"}, {"q", "s1", "z1"}, "quantize"),
                 node("MatMulInteger", {"q", "w", "z1", "wz"}, {"integers"}, "multiply"),
                 node("Cast", {"integers"}, {"products"}, "cast") +
                     message(5, message(1, "to") + number(3, 1) + number(20, 2)),
                 node("Add", {"products", "b"}, {"logits"}, "add")};
  folder.write("model.onnx", model.bytes());
  expect_refused(folder, {folder.model(), "multiply", "Mul", "'w'"});
}

TEST(QuantizedRefusalTest, IntegersAddedToAProductThatAreNoBias) {
  const ModelFolder folder;
  SmallModel model = quantized_model();
  const std::string to_float = message(5, message(1, "to") + number(3, 1) + number(20, 2));
  model.nodes = {node("DynamicQuantizeLinear", {"x"}, {"q", "s1", "z1"}, "quantize"),
                 node("MatMulInteger", {"q", "w", "z1", "wz"}, {"integers"}, "multiply"),
                 node("Add", {"integers", "more"}, {"sums"}, "shift"),
                 node("Cast", {"sums"}, {"products"}, "cast") + to_float,
                 node("Mul", {"s1", "ws"}, {"scales"}, "scale"),
                 node("Mul", {"products", "scales"}, {"floats"}, "apply"),
                 node("Add", {"floats", "b"}, {"logits"}, "add")};
  constexpr int kInt32 = 6;
  model.initializers.push_back(tensor("more", kInt32, {3}, raw<int32_t>({1, 2, 3})));
  folder.write("model.onnx", model.bytes());
  expect_refused(folder, {folder.model(), "shift", "Floor", "'more'"});
}

}  // namespace quantized_test
}  // namespace ofsdp
