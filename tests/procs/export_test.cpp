// The trained file: the input with other bytes where initializers lie, and nothing else.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>

#include "importer/file/onnx_file.h"
#include "importer/file/tensor_file.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace export_test {

using namespace onnx_bytes;

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

// The file with zeros where its initializers lie: everything that training must not touch.
std::string without_weights(const std::string& path) {
  std::string bytes = content(path);
  const OnnxFile file = opened(path);
  for (const Initializer& weight : file.initializers()) {
    if (weight.file != 0) continue;
    bytes.replace(static_cast<size_t>(weight.offset), static_cast<size_t>(weight.bytes),
                  static_cast<size_t>(weight.bytes), '\0');
  }
  return bytes;
}

// Names of the initializers whose values differ.
std::vector<std::string> changed(const std::string& before, const std::string& after) {
  const OnnxFile old_file = opened(before);
  const OnnxFile new_file = opened(after);
  std::vector<std::string> names;
  EXPECT_EQ(old_file.initializers().size(), new_file.initializers().size());
  for (size_t i = 0; i < new_file.initializers().size(); ++i) {
    const Initializer& weight = new_file.initializers()[i];
    EXPECT_EQ(weight.name, old_file.initializers()[i].name);
    const auto old_values = values_of(old_file, old_file.initializers()[i]);
    if (old_values != values_of(new_file, weight)) names.push_back(weight.name);
  }
  return names;
}

void expect_success(const Words& words) {
  const Finished run = Program::run(words);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
}

TEST(ExportTest, OnlyInitializersChange) {
  const RunFolder folder;
  for (const char* model : {"model.onnx", "model_legacy.onnx", "model_with_loss.onnx"}) {
    for (const int count : {1, 3}) {
      SCOPED_TRACE(format_text("{} with {} ranks", model, count));
      const std::string input = fixture("mlp/") + model;
      expect_success(mlp(model) + ranks(count) +
                     Words{"--steps", "3", "--output", folder.output()});
      EXPECT_TRUE(without_weights(input) == without_weights(folder.output()));
      EXPECT_EQ(changed(input, folder.output()).size(), 6u);
    }
  }
}

TEST(ExportTest, FrozenInitializersStay) {
  const RunFolder folder;
  const std::string input = fixture("mlp/model.onnx");
  const Words train = mlp() + Words{"--steps", "3", "--output", folder.output()} + ranks(2);
  expect_success(train + Words{"--freeze", "fc1.*", "--freeze", "head.bias"});
  EXPECT_EQ(changed(input, folder.output()), (Words{"fc2.weight", "fc2.bias", "head.weight"}));
  EXPECT_TRUE(without_weights(input) == without_weights(folder.output()));
  expect_success(train + Words{"--train", "head.*"});
  EXPECT_EQ(changed(input, folder.output()), (Words{"head.weight", "head.bias"}));
}

// A rate of 0 changes no weight, so the copy is the input.
TEST(ExportTest, WithoutAnUpdateTheFileIsTheSame) {
  const RunFolder folder;
  const Words still = {"--optimizer", "sgd", "--lr", "0"};
  for (const int count : {1, 2}) {
    expect_success(folder.train() + still + ranks(count));
    EXPECT_TRUE(content(folder.output()) == content(folder.model()));
  }
}

TEST(ExportTest, AnExistingFileIsReplacedByRename) {
  const RunFolder folder;
  folder.write("trained.onnx", "what was there");
  std::filesystem::create_hard_link(folder.output(), folder / "kept");
  expect_success(folder.train() + ranks(2));
  EXPECT_EQ(content(folder / "kept"), "what was there") << "written in place";
  EXPECT_EQ(changed(folder.model(), folder.output()).size(), 2u);
}

TEST(ExportTest, TheInputIsNoOutput) {
  const RunFolder folder;
  expect_refused(folder, folder.train() + Words{"--output", folder.model()},
                 {"--output " + folder.model(), "another file than the model"});
}

SmallModel external_model() {
  SmallModel model = linear_model();
  model.initializers[0] = tensor("w", kFloat, {4, 3}, external("weights.bin", "16", "48"));
  return model;
}

TEST(ExportTest, ExternalDataStayExternal) {
  const RunFolder folder;
  const std::string data = "sixteen bytes   " + bytes_of(linear_weights()) + "tail";
  folder.write("model.onnx", external_model().bytes());
  folder.write("weights.bin", data);
  const Words train = folder.train() + ranks(2) + Words{"--output", folder / "out/trained.onnx"};
  std::filesystem::create_directory(folder / "out");
  expect_success(train);
  const std::string trained = content(folder / "out/weights.bin");
  ASSERT_EQ(trained.size(), data.size());
  EXPECT_EQ(trained.substr(0, 16), data.substr(0, 16));
  EXPECT_EQ(trained.substr(64), "tail");
  EXPECT_NE(trained.substr(16, 48), data.substr(16, 48));
  EXPECT_EQ(content(folder / "weights.bin"), data) << "the input's own data were written";
  EXPECT_TRUE(without_weights(folder.model()) == without_weights(folder / "out/trained.onnx"));
  EXPECT_EQ(changed(folder.model(), folder / "out/trained.onnx"), (Words{"w", "b"}));
}

// Next to its input the trained model needs a data file of another name, which it names itself.
TEST(ExportTest, ExternalDataBesideTheInput) {
  const RunFolder folder;
  folder.write("model.onnx", external_model().bytes());
  folder.write("weights.bin", "sixteen bytes   " + bytes_of(linear_weights()));
  expect_success(folder.train() + ranks(2));
  EXPECT_EQ(changed(folder.model(), folder.output()), (Words{"w", "b"}));
  const Words again = fsdp_run({folder.output(), "--loss", "cross_entropy", "--steps", "1"});
  expect_success(again + Words{"--output", folder / "again.onnx"});
  EXPECT_EQ(changed(folder.output(), folder / "again.onnx").size(), 2u);
}

SmallModel half_model() {
  // 0.5, -0.25, 0.75, 0.125, ...: linear_weights, which have few enough bits
  const std::vector<uint16_t> halves = {0x3800, 0xb400, 0x3a00, 0x3000, 0xb800, 0x3400,
                                        0x3c00, 0xbc00, 0x3800, 0xba00, 0x3400, 0x3000};
  SmallModel model = linear_model();
  model.initializers[0] = tensor("w", kHalf, {4, 3}, raw(halves));
  const std::string to_float = message(1, "to") + number(3, kFloat) + number(20, 2);
  model.nodes[0] = node("Cast", {"w"}, {"w32"}, "widen") + message(5, to_float);
  model.nodes.insert(model.nodes.begin() + 1,
                     node("MatMul", {"x", "w32"}, {"products"}, "multiply"));
  return model;
}

// The master weights are float32: the file gets what they are, rounded to the nearest float16.
TEST(ExportTest, HalfInitializersGetRoundedMasterWeights) {
  const RunFolder folder;
  const Words train = folder.train() + ranks(2) + Words{"--lr", "0.03", "--steps", "6"};
  expect_success(train);
  std::filesystem::rename(folder.output(), folder / "single.onnx");
  const std::string half = folder.write("model.onnx", half_model().bytes());
  expect_success(train);
  EXPECT_TRUE(without_weights(half) == without_weights(folder.output()));
  const OnnxFile single_file = opened(folder / "single.onnx");
  const OnnxFile half_file = opened(folder.output());
  EXPECT_EQ(half_file.initializers()[0].dtype, DType::kFloat16);
  const auto expected = values_of(single_file, single_file.initializers()[0]);
  const auto found = values_of(half_file, half_file.initializers()[0]);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(std::abs(found[i] - expected[i]), std::abs(expected[i]) * 0x1p-11f)
        << "element " << i;
    EXPECT_NE(found[i], linear_weights()[i]) << "element " << i << " was not trained";
  }
}

std::vector<float> values_of(const TensorFile& file, const FileTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.numel()));
  EXPECT_TRUE(file.read(tensor, 0, values).ok());
  return values;
}

TensorFile safetensors_of(const RunFolder& folder, const std::string& model) {
  expect_success(
      {OFSDP_FSDP_RUN, "export", model, "--format", "safetensors", "-o", folder / "w.safetensors"});
  auto file = open_safetensors(folder / "w.safetensors");
  EXPECT_TRUE(file.ok()) << file.error().message();
  return *std::move(file);
}

void expect_export_refused(const Words& words, const Words& facts) {
  const Finished run = Program::run(fsdp_run({"export"}) + words);
  EXPECT_EQ(run.status, 2) << run.out;
  expect_one_line(run.err, facts);
}

std::string with_state_dict(const std::string& text) {
  return linear_model().bytes() +
         message(14, message(1, "onnx_fsdp.state_dict") + message(2, text));
}

TEST(ExportTest, WeightsOfAModelFile) {
  const RunFolder folder;
  const TensorFile file = safetensors_of(folder, folder.model());
  ASSERT_EQ(file.tensors().size(), 2u);
  ASSERT_NE(file.find("w"), nullptr);
  EXPECT_EQ(values_of(file, *file.find("w")), linear_weights());
  expect_export_refused({folder.model(), "-o", folder / "o.onnx"},
                        {"expected a checkpoint", "--format safetensors"});
}

// Tied keys, a transpose, a buffer that no node reads, and an initializer that came later.
TEST(ExportTest, TheStateDictOfAModule) {
  const RunFolder folder;
  folder.write("model.onnx",
               with_state_dict(
                   R"({"version":1,"tensors":{"net.weight":{"initializer":"w","transposed":true},)"
                   R"("head.weight":"w","seen":{"dtype":"I64","shape":[],"data":"BwAAAAAAAAA="},)"
                   R"("gone":"none"}})"));
  const TensorFile file = safetensors_of(folder, folder.model());
  EXPECT_EQ(file.tensors().size(), 4u);
  for (const char* name : {"net.weight", "head.weight", "seen", "b"}) {
    ASSERT_NE(file.find(name), nullptr) << name;
  }
  EXPECT_EQ(values_of(file, *file.find("head.weight")), linear_weights());
  EXPECT_EQ(file.find("net.weight")->shape, (Shape{3, 4}));
  const std::vector<float> turned = values_of(file, *file.find("net.weight"));
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(turned[i % 3 * 4 + i / 3], linear_weights()[i]) << i;
  EXPECT_EQ(file.find("seen")->dtype, DType::kInt64);
  const std::string bytes = content(folder / "w.safetensors");
  EXPECT_EQ(bytes.substr(static_cast<size_t>(file.find("seen")->offset), 8),
            std::string("\7\0\0\0\0\0\0\0", 8));
}

TEST(ExportTest, AStateDictThatCannotBeReadIsRefused) {
  const RunFolder folder;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[", "expected JSON"},
      {"[]", "expected a JSON object of version 1"},
      {R"({"version":2,"tensors":{}})", "version 1"},
      {R"({"version":1})", "an object 'tensors'"},
      {R"({"version":1,"tensors":{"k":3}})", "'k': expected a name or an object"},
      {R"({"version":1,"tensors":{"k":{"initializer":"b","transposed":true}}})",
       "'k': expected a matrix 'b', found 1 axes"},
      {R"({"version":1,"tensors":{"k":"b","k":"w"}})", "stands twice"},
      {R"({"version":1,"tensors":{"k":{"dtype":"I65","shape":[],"data":""}}})", "'I65'"},
      {R"({"version":1,"tensors":{"k":{"dtype":"I64","shape":[1],"data":"AAAA"}}})",
       "expected 1 elements of int64"},
      {R"({"version":1,"tensors":{"k":{"dtype":"I64","shape":[-1],"data":"AAAA"}}})", "axes"},
      {R"({"version":1,"tensors":{"k":{"dtype":"I8","shape":[3],"data":"A*AA"}}})",
       "expected 3 elements of int8"},
      {std::string(100000, '['), "expected JSON"}};
  for (const auto& [text, part] : cases) {
    folder.write("model.onnx", with_state_dict(text));
    expect_export_refused(
        {folder.model(), "--format", "safetensors", "-o", folder / "w.safetensors"},
        {"model.onnx", "onnx_fsdp.state_dict", part});
  }
}

}  // namespace export_test
}  // namespace ofsdp
