// Models that cannot be trained: refused with exit status 2 and one line that names file and node.
// And operators that cannot run and that no trained node needs.
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace bad_model_test {

using namespace onnx_bytes;

TEST(BadModelTest, TheFolderThatTheseTestsSpoilIsGood) {
  const ModelFolder folder;
  expect_trains(folder);
  expect_trains(folder, ranks(2));
}

TEST(BadModelTest, NoFile) {
  const ModelFolder folder;
  const Words words = fsdp_run({folder / "absent.onnx", "--output", folder.output()});
  expect_refused(folder, words, {folder / "absent.onnx", "no such file"});
}

// Files that people give in place of a model.
TEST(BadModelTest, AnotherKindOfFile) {
  const ModelFolder folder;
  const std::pair<const char*, Words> kinds[] = {
      {"run.yaml", {"a YAML file", "MODEL.onnx first", "--data or --config"}},
      {"d.csv", {"a table", "MODEL.onnx first"}},
      {"m.safetensors", {"weights without a graph", "export"}},
  };
  for (const auto& [name, facts] : kinds) {
    folder.write(name, "train: 1\nloss: mse\n");
    expect_refused(folder, fsdp_run({folder / name}), Words{folder / name} + facts);
  }
  folder.write("m.pt", "PK\x03\x04....");
  expect_refused(folder, fsdp_run({folder / "m.pt"}), {"m.pt", "a zip archive", "export"});
}

TEST(BadModelTest, AFolder) {
  const ModelFolder folder;
  const Words words = fsdp_run({folder / "data", "--output", folder.output()});
  expect_refused(folder, words, {folder / "data", "expected", "found a folder"});
}

TEST(BadModelTest, NoOnnx) {
  const ModelFolder folder;
  for (const std::string& bytes : {std::string("#!/bin/sh\necho hello\n"), std::string(1000, '\0'),
                                   std::string("\x80\x04]q\x00.", 6), std::string()}) {
    folder.write("model.onnx", bytes);
    expect_refused(folder, {folder.model(), "no ONNX model"});
  }
}

TEST(BadModelTest, Truncated) {
  const ModelFolder folder;
  const std::string whole = linear_model().bytes();
  for (const size_t length : {whole.size() - 1, whole.size() / 2, size_t{40}}) {
    folder.write("model.onnx", whole.substr(0, length));
    expect_refused(folder, {folder.model()});
  }
  const std::string real = content(fixture("mlp/model.onnx"));
  folder.write("model.onnx", real.substr(0, real.size() - 100));
  expect_refused(folder, {folder.model(), "truncated"});
}

SmallModel external_model(const std::string& location, const std::string& offset,
                          const std::string& length) {
  SmallModel model = linear_model();
  model.initializers[0] = tensor("w", kFloat, {4, 3}, external(location, offset, length));
  return model;
}

TEST(BadModelTest, ExternalDataIsMissing) {
  const ModelFolder folder;
  folder.write("model.onnx", external_model("weights.bin", "0", "48").bytes());
  expect_refused(folder, {folder.model(), "'w'", "weights.bin", "no such file"});
  folder.write("weights.bin", bytes_of(linear_weights()));
  expect_trains(folder);
}

TEST(BadModelTest, ExternalDataLeadOutOfTheFolder) {
  const ModelFolder folder;
  const Folder outside;
  const std::string secret = outside.write("secret.bin", std::string(48, 'x'));
  std::filesystem::create_symlink(secret, folder / "link.bin");
  std::filesystem::create_directory_symlink(outside.path(), folder / "inside");
  const std::string up = "../" + outside.path().substr(outside.path().rfind('/') + 1);
  for (const std::string& location :
       {secret, up + "/secret.bin", std::string("link.bin"), std::string("inside/secret.bin")}) {
    folder.write("model.onnx", external_model(location, "0", "48").bytes());
    expect_refused(folder, {folder.model(), "'w'", "inside of the model's folder", location});
  }
}

TEST(BadModelTest, ExternalDataLeaveTheirFile) {
  const ModelFolder folder;
  folder.write("weights.bin", std::string(100, '\0'));
  const std::vector<std::pair<std::string, Words>> places = {
      {"53", {"48 bytes at offset 53", "found 47"}},
      {"200", {"48 bytes at offset 200", "found 0"}},
      {"9223372036854775807", {"48 bytes at offset 9223372036854775807", "found 0"}}};
  for (const auto& [offset, facts] : places) {
    folder.write("model.onnx", external_model("weights.bin", offset, "48").bytes());
    expect_refused(folder, Words{folder.model(), "'w'", "weights.bin"} + facts);
  }
  folder.write("model.onnx", external_model("weights.bin", "0", "47").bytes());
  expect_refused(folder, {folder.model(), "'w'", "expected 48 bytes", "found 47"});
  folder.write("model.onnx", external_model("weights.bin", "-4", "48").bytes());
  expect_refused(folder, {folder.model(), "'w'", "offset", "'-4'"});
}

TEST(BadModelTest, DimensionsOverflow) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  const std::vector<std::vector<int64_t>> shapes = {
      {int64_t{1} << 40, int64_t{1} << 40}, {int64_t{1} << 62, 2}, {-4, 3}};
  for (const auto& dims : shapes) {
    model.initializers[0] = tensor("w", kFloat, dims, raw(linear_weights()));
    folder.write("model.onnx", model.bytes());
    expect_refused(folder, {folder.model(), "'w'", std::to_string(dims[0])});
  }
}

TEST(BadModelTest, WeightsThatAreNotThere) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.initializers[0] = tensor("w", kFloat, {4, 3}, raw<float>({1, 2, 3}));
  folder.write("model.onnx", model.bytes());
  expect_refused(folder, {folder.model(), "'w'", "48", "12"});
}

TEST(BadModelTest, OperatorsWithoutAKernelAreListedAtOnce) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.domains = {"com.example"};
  model.nodes = {node("MatMul", {"x", "w"}, {"products"}, "multiply"),
                 node("Mystery", {"products"}, {"m1"}, "first/mystery", "com.example"),
                 node("Riddle", {"m1"}, {"m2"}, "riddle", "com.example"),
                 node("Mystery", {"m2"}, {"m3"}, "second/mystery", "com.example"),
                 node("Add", {"m3", "b"}, {"logits"}, "add")};
  folder.write("model.onnx", model.bytes());
  expect_refused(folder,
                 {folder.model(), "without a kernel", "com.example.Mystery", "first/mystery",
                  "second/mystery", "com.example.Riddle", "(1 node: riddle"});
}

TEST(BadModelTest, OperatorWithoutAGradientOnThePath) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.opset = 24;
  const std::string axis = message(5, message(1, "axis") + number(3, 1) + number(20, 2));
  model.nodes[1] = node("TensorScatter", {"products", "products"}, {"logits"}, "one_way") + axis;
  folder.write("model.onnx", model.bytes());
  expect_refused(folder, {folder.model(), "without a gradient", "TensorScatter", "one_way"});
}

TEST(BadModelTest, OperatorsAndAttributesOfOurOwn) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.domains = {"ofsdp"};
  model.nodes[1] = node("ReluGrad", {"products", "products"}, {"logits"}, "one_way", "ofsdp");
  folder.write("model.onnx", model.bytes());
  expect_refused(folder,
                 {folder.model(), "'one_way' (ofsdp.ReluGrad)", "one of the program's own"});
  const std::string own =
      message(5, message(1, "ofsdp_activation") + message(4, "relu") + number(20, 3));
  model.domains = {"com.microsoft"};
  model.nodes[1] = node("FusedMatMul", {"x", "w"}, {"logits"}, "fused", "com.microsoft") + own;
  folder.write("model.onnx", model.bytes());
  expect_refused(folder, {folder.model(), "'fused'", "'ofsdp_activation'"});
}

TEST(BadModelTest, ShapesThatDoNotFit) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.initializers[0] = tensor("w", kFloat, {5, 3}, raw(count_up(15)));
  folder.write("model.onnx", model.bytes());
  expect_refused(folder, {folder.model(), "multiply", "4", "5"});
}

TEST(BadModelTest, NoTrainableInitializer) {
  const ModelFolder folder;
  expect_refused(folder, folder.train() + Words{"--freeze", "*"}, {folder.model(), "train", "2"});
  SmallModel none = linear_model();
  none.initializers.clear();
  none.nodes = {node("Relu", {"x"}, {"logits"}, "relu")};
  none.outputs = {declared("logits", {-1, 4})};
  folder.write("model.onnx", none.bytes());
  expect_refused(folder, {folder.model(), "train", "0"});
}

TEST(BadModelTest, LossThatNoTrainableInitializerReaches) {
  const ModelFolder folder;
  SmallModel model = linear_model();  // the weights lead to another output, not to the loss
  model.nodes.push_back(node("Relu", {"x"}, {"other"}, "relu"));
  model.outputs.push_back(declared("other", {-1, 4}));
  folder.write("model.onnx", model.bytes());
  expect_refused(folder, folder.train() + Words{"--prediction", "other"},
                 {folder.model(), "loss", "reaches no trainable initializer"});
}

TEST(BadModelTest, NamesThatAreNotThere) {
  const ModelFolder folder;
  expect_refused(folder, folder.train() + Words{"--freeze", "encoder.*"},
                 {"--freeze encoder.*", "no initializer", folder.model()});
  expect_refused(folder, folder.train() + Words{"--train", "W"}, {"--train W", "no initializer"});
  expect_refused(folder, folder.train() + Words{"--prediction", "logit"},
                 {"--prediction logit", folder.model(), "logits"});
  expect_refused(folder, folder.train() + Words{"--loss", "output:loss"},
                 {"--loss output:loss", folder.model(), "logits"});
}

// scikit-learn's classifiers have names and dictionaries after the scores
// (tests/oracle/make_sklearn.py).
Words train_flowers(const std::string& model, const ModelFolder& folder) {
  return fsdp_run({fixture("sklearn/" + model), "--data", fixture("sklearn/data.yaml"), "--loss",
                   "cross_entropy", "--optimizer", "adamw", "--lr", "0.05", "--batch-size", "20",
                   "--epochs", "20", "--metrics", folder / "metrics.jsonl", "--output",
                   folder.output()});
}

TEST(LeftOutTest, LabelsOfScikitLearn) {
  for (const char* model : {"mlp.onnx", "pipeline.onnx"}) {
    const ModelFolder folder;
    const Finished run =
        Program::run(train_flowers(model, folder) + Words{"--prediction", "add_result1"});
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, testing::HasSubstr("left out: output_label, output_probability"));
    EXPECT_THAT(run.out, testing::HasSubstr("classes: 0 aster, 1 daisy, 2 poppy"));
    EXPECT_LT(losses_of(folder / "metrics.jsonl").back(), 0.2) << model;
    // The written file is the input with other weights.
    const std::string trained = content(folder.output());
    const std::string before = content(fixture(std::string("sklearn/") + model));
    EXPECT_EQ(trained.size(), before.size());
    EXPECT_NE(trained, before);
    for (const char* op : {"ZipMap", "ArrayFeatureExtractor"}) {
      EXPECT_THAT(trained, testing::HasSubstr(op));
    }
    EXPECT_EQ(content(folder / "classes.txt"), "aster\ndaisy\npoppy\n");
  }
}

TEST(LeftOutTest, TheValueBeforeThemIsTheOnlyCandidate) {
  const ModelFolder folder;
  const Finished run = Program::run(train_flowers("mlp.onnx", folder));
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(content(folder.output()), testing::HasSubstr("ZipMap"));
}

TEST(LeftOutTest, WeightsInAttributesAreRefused) {
  const ModelFolder folder;
  expect_refused(
      folder, train_flowers("logistic.onnx", folder),
      {"logistic.onnx", "ai.onnx.ml.LinearClassifier", "weights are attributes", "MLPClassifier"});
}

// An unknown operator is refused, unless the user names a value that needs none.
TEST(LeftOutTest, UnknownOperatorsBesideANamedPrediction) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.domains = {"com.example"};
  model.nodes.push_back(node("Mystery", {"logits"}, {"m"}, "mystery", "com.example"));
  model.nodes.push_back(node("Relu", {"m"}, {"riddle"}, "after"));
  model.outputs.push_back(declared("riddle", {-1, 3}));
  model.nodes.push_back(node("Mystery", {"size"}, {"m2"}, "of_an_input", "com.example"));
  model.inputs.push_back(declared("size", {-1}));  // needs no column
  folder.write("model.onnx", model.bytes());
  expect_refused(folder, {folder.model(), "without a kernel", "com.example.Mystery (2 nodes"});
  expect_refused(folder, folder.train() + Words{"--prediction", "riddle"},
                 {"without a kernel", "com.example.Mystery"});
  expect_trains(folder, {"--prediction", "logits"});
  expect_trains(folder, {"--prediction", "products"});  // no output in the file
  expect_refused(folder, folder.train() + Words{"--prediction", "absent"},
                 {folder.model(), "com.example.Mystery"});
}

// The same for a node with shapes that do not fit.
TEST(LeftOutTest, ABrokenBranchBesideANamedPrediction) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.nodes.push_back(node("MatMul", {"logits", "w"}, {"broken"}, "broken"));
  model.outputs.push_back(declared("broken", {-1, 3}));
  folder.write("model.onnx", model.bytes());
  expect_refused(folder, {folder.model(), "'broken'"});
  expect_refused(folder, folder.train() + Words{"--prediction", "broken"}, {"'broken'"});
  expect_trains(folder, {"--prediction", "logits"});
}

TEST(LeftOutTest, APredictionMayBeAnyValue) {
  const ModelFolder folder;
  expect_trains(folder, {"--prediction", "products"});
  expect_refused(folder, folder.train() + Words{"--prediction", "product"},
                 {"--prediction product", folder.model(), "no such output"});
}

}  // namespace bad_model_test
}  // namespace ofsdp
