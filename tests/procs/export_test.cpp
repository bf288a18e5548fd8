// The trained file: the input with other bytes in place of initializers, and no other difference.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>

#include "fsdp/comm/rank_identity.h"
#include "importer/file/onnx_file.h"
#include "importer/file/tensor_file.h"
#include "runtime/cli/command_line.h"
#include "runtime/data/column_file.h"
#include "runtime/train/file_answers.h"
#include "runtime/train/prepared_run.h"
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

// The file with zeros in place of initializers: everything that training must not touch.
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

// Names of initializers with different values.
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
  const ModelFolder folder;
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
  const ModelFolder folder;
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
  const ModelFolder folder;
  const Words still = {"--optimizer", "sgd", "--lr", "0"};
  for (const int count : {1, 2}) {
    expect_success(folder.train() + still + ranks(count));
    EXPECT_TRUE(content(folder.output()) == content(folder.model()));
  }
}

TEST(ExportTest, AnExistingFileIsReplacedByRename) {
  const ModelFolder folder;
  folder.write("trained.onnx", "what was there");
  std::filesystem::create_hard_link(folder.output(), folder / "kept");
  expect_success(folder.train() + ranks(2));
  EXPECT_EQ(content(folder / "kept"), "what was there") << "written in place";
  EXPECT_EQ(changed(folder.model(), folder.output()).size(), 2u);
}

TEST(ExportTest, TheInputIsNoOutput) {
  const ModelFolder folder;
  expect_refused(folder, folder.train() + Words{"--output", folder.model()},
                 {"--output " + folder.model(), "another file than the model"});
}

SmallModel external_model() {
  SmallModel model = linear_model();
  model.initializers[0] = tensor("w", kFloat, {4, 3}, external("weights.bin", "16", "48"));
  return model;
}

TEST(ExportTest, ExternalDataStayExternal) {
  const ModelFolder folder;
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

// Next to the input the trained model needs a data file with another name, and refers to it.
TEST(ExportTest, ExternalDataBesideTheInput) {
  const ModelFolder folder;
  folder.write("model.onnx", external_model().bytes());
  folder.write("weights.bin", "sixteen bytes   " + bytes_of(linear_weights()));
  expect_success(folder.train() + ranks(2));
  EXPECT_EQ(changed(folder.model(), folder.output()), (Words{"w", "b"}));
  const Words again = fsdp_run({folder.output(), "--loss", "cross_entropy", "--steps", "1"});
  expect_success(again + Words{"--output", folder / "again.onnx"});
  EXPECT_EQ(changed(folder.output(), folder / "again.onnx").size(), 2u);
}

SmallModel half_model() {
  // 0.5, -0.25, 0.75, 0.125, ...: linear_weights, which float16 holds exactly
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

// The master weights are float32: the file gets them rounded to the nearest float16.
TEST(ExportTest, HalfInitializersGetRoundedMasterWeights) {
  const ModelFolder folder;
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

TensorFile safetensors_of(const ModelFolder& folder, const std::string& model) {
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
  const ModelFolder folder;
  const TensorFile file = safetensors_of(folder, folder.model());
  ASSERT_EQ(file.tensors().size(), 2u);
  ASSERT_NE(file.find("w"), nullptr);
  EXPECT_EQ(values_of(file, *file.find("w")), linear_weights());
  expect_export_refused({folder.model(), "-o", folder / "o.onnx"},
                        {"expected a checkpoint", "--format safetensors"});
}

// The ending tells the kind of file.
TEST(ExportTest, AFileOfAnotherKindIsRefused) {
  const ModelFolder folder;
  for (const char* name : {"y.safetensors", "y.pt"}) {
    expect_refused(folder, folder.train() + Words{"-o", folder / name}, {name, "a file .onnx"});
  }
  expect_export_refused({folder.model(), "-o", folder / "w.onnx", "--format", "safetensors"},
                        {"w.onnx", ".safetensors"});
  expect_export_refused({folder.model(), "-o", folder / "w.safetensors", "--format", "onnx"},
                        {"w.safetensors", ".onnx"});
  const std::string path = folder / "w.safetensors";
  expect_success(fsdp_run({"export", folder.model(), "-o", path}));
  const auto file = open_safetensors(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(values_of(*file, *file->find("w")), linear_weights());
}

// Tied keys, a transpose, a buffer that no node reads, and an initializer that came later.
TEST(ExportTest, TheStateDictOfAModule) {
  const ModelFolder folder;
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
  const ModelFolder folder;
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

// --- weights that the module does not train

std::string with_frozen(const std::string& names) {
  return linear_model().bytes() + message(14, message(1, "onnx_fsdp.frozen") + message(2, names));
}

// The list in the metadata keeps a weight, --train takes it all the same, and the file keeps both.
TEST(ExportTest, WeightsThatTheModuleDoesNotTrainStay) {
  const ModelFolder folder;
  folder.write("model.onnx", with_frozen(R"(["b"])"));
  const std::vector<std::pair<Words, Words>> cases = {{{}, {"w"}},
                                                      {{"--train", "b"}, {"b"}},
                                                      {{"--train", "*"}, {"w", "b"}},
                                                      {{"--replace-head", "3"}, {"w", "b"}}};
  for (const auto& [more, names] : cases) {
    const Finished run = Program::run(folder.train() + more);
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(changed(folder.model(), folder.output()),
                testing::UnorderedElementsAreArray(names));
    const bool kept = more.empty();
    EXPECT_EQ(run.out.find("in 1 of 2 tensors; 1 frozen by the module") != run.out.npos, kept)
        << run.out;
    if (kept) {
      EXPECT_EQ(without_weights(folder.model()), without_weights(folder.output()));
    }
  }
}

// Copies of a frozen weight are frozen, too.
TEST(ExportTest, UntiedCopiesOfFrozenWeightsStay) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.nodes = {node("MatMul", {"x", "w"}, {"one"}, "one"),
                 node("MatMul", {"x", "w"}, {"two"}, "two"),
                 node("Add", {"one", "two"}, {"products"}, "both"),
                 node("Add", {"products", "b"}, {"logits"}, "add")};
  folder.write("model.onnx", model.bytes() + message(14, message(1, "onnx_fsdp.frozen") +
                                                             message(2, R"(["w"])")));
  const Finished run = Program::run(folder.train() + Words{"--untie", "w"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, testing::HasSubstr("in 1 of 3 tensors; 2 frozen by the module"));
  const Finished again = Program::run(
      fsdp_run({folder.output(), "--loss", "cross_entropy", "--steps", "1", "--run-dir", "none"}));
  EXPECT_THAT(again.out, testing::HasSubstr("in 1 of 3 tensors; 2 frozen by the module"));
}

TEST(ExportTest, AListOfFrozenWeightsThatIsWrong) {
  const ModelFolder folder;
  for (const char* names : {"b", R"({"b":1})", "[1]"}) {
    folder.write("model.onnx", with_frozen(names));
    expect_refused(folder, folder.train(), {"model.onnx: metadata 'onnx_fsdp.frozen'", names});
  }
  folder.write("model.onnx", with_frozen(R"(["w", "gone"])"));
  const Finished run = Program::run(folder.train());
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, testing::HasSubstr("names 'gone', which is no initializer"));
  EXPECT_EQ(changed(folder.model(), folder.output()), std::vector<std::string>{"b"});
}

// --- the form of the file, and its answers

// x [batch, 4] is normalized over the batch, then dropped at random.
SmallModel training_model() {
  SmallModel model = linear_model();
  const std::string on = message(1, "training_mode") + number(3, 1) + number(20, 2);
  model.nodes = {node("BatchNormalization", {"x", "scale", "shift", "mean", "variance"},
                      {"normal", "next_mean", "next_variance"}, "normalize") +
                     message(5, on),
                 node("Dropout", {"normal", "ratio", "training"}, {"kept"}, "drop"),
                 node("MatMul", {"kept", "w"}, {"products"}, "multiply"),
                 node("Add", {"products", "b"}, {"logits"}, "add")};
  constexpr int kBool = 9;
  model.initializers.insert(model.initializers.end(),
                            {tensor("scale", kFloat, {4}, raw<float>({1, 1.5f, 0.5f, 1})),
                             tensor("shift", kFloat, {4}, raw<float>({0, 0.25f, 0, -0.5f})),
                             tensor("mean", kFloat, {4}, raw<float>({0.1f, 0.2f, -0.1f, 0})),
                             tensor("variance", kFloat, {4}, raw<float>({2, 1, 0.5f, 1})),
                             tensor("ratio", kFloat, {}, raw<float>({0.5f})),
                             tensor("training", kBool, {}, raw<uint8_t>({1}))});
  return model;
}

std::string trained_text(const Words& words) {
  const Finished run = Program::run(words);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  return run.out;
}

constexpr const char* kAnswers = " answers as the evaluation did: largest difference ";
constexpr const char* kNotEvaluated = " answers as the trained weights do: largest difference ";

TEST(ExportTest, TheInferenceFormHasTheSameWeights) {
  const ModelFolder folder;
  folder.write("model.onnx", training_model().bytes());
  const std::string inference = folder / "inference.onnx";
  for (const int count : {1, 2}) {
    const Words train = folder.train() + ranks(count) + Words{"--eval-data", folder / "data"};
    const std::string same = trained_text(train);
    EXPECT_THAT(same, testing::HasSubstr("trained.onnx keeps the training form: 1 "
                                         "BatchNormalization with the statistics of the batch, 1 "
                                         "Dropout that drop at random\n"));
    EXPECT_THAT(same, testing::HasSubstr("its inference form (--output-form inference)" +
                                         std::string(kAnswers)));
    EXPECT_TRUE(without_weights(folder.model()) == without_weights(folder.output()));
    const std::string off =
        trained_text(train + Words{"--output-form", "inference", "--output", inference});
    EXPECT_THAT(off, testing::HasSubstr("inference.onnx" + std::string(kAnswers)));
    EXPECT_THAT(off, testing::Not(testing::HasSubstr("training form")));
    EXPECT_EQ(changed(folder.output(), inference), Words{});
    EXPECT_EQ(changed(folder.model(), inference).size(), 6u);
  }
  // The file has no switch left, so a further run keeps no training form.
  const Words again = fsdp_run({inference, "--data", folder / "data", "--loss", "cross_entropy",
                                "--steps", "1", "--output", folder / "again.onnx"});
  EXPECT_THAT(trained_text(again), testing::HasSubstr("again.onnx" + std::string(kNotEvaluated)));
}

// A batch normalization without dropout: the file answers, and the run reports the difference.
TEST(ExportTest, TellsHowFarBatchStatisticsAreAway) {
  const ModelFolder folder;
  SmallModel model = training_model();
  model.nodes[1] = node("Identity", {"normal"}, {"kept"}, "keep");
  folder.write("model.onnx", model.bytes());
  EXPECT_THAT(trained_text(folder.train()),
              testing::ContainsRegex("the batch; its loss is [0-9.e-]+ away from that of the "
                                     "trained weights over 8 rows\nits inference form"));
}

TEST(ExportTest, AnInferenceFormThatCannotBeIsRefused) {
  const ModelFolder folder;
  SmallModel model = training_model();
  model.outputs.push_back(declared("next_mean", {4}));
  folder.write("model.onnx", model.bytes());
  expect_refused(folder,
                 folder.train() + Words{"--output-form", "inference", "--prediction", "logits"},
                 {folder.model(), "'normalize'", "running statistics"});
}

TEST(ExportTest, EveryRunSaysThatItsFileAnswersAsItsWeightsDo) {
  const ModelFolder folder;
  const Words eval = {"--eval-data", fixture("mlp/data")};
  const std::vector<Words> runs = {{},
                                   eval,
                                   eval + Words{"--param-dtype", "bfloat16"},
                                   eval + Words{"--param-dtype", "float16"},
                                   Words{"--param-dtype", "bfloat16"},
                                   eval + Words{"--ema", "0.5"},
                                   Words{"--ema", "0.5"},
                                   eval + Words{"--lora", "all", "--lora-rank", "2"},
                                   eval + Words{"--replace-head", "5"}};
  for (const Words& words : runs) {
    for (const int count : {1, 2}) {
      SCOPED_TRACE(joined(words, " ") + format_text(", {} ranks", count));
      const std::string text =
          trained_text(fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--steps",
                                 "4", "--output", folder.output()}) +
                       words + ranks(count));
      const bool evaluated = text.find("\nevaluation after step ") != std::string::npos;
      EXPECT_TRUE(evaluated || !std::ranges::count(words, "--eval-data"));
      const std::string answers = evaluated ? kAnswers : kNotEvaluated;
      EXPECT_THAT(text, testing::HasSubstr("trained.onnx" + answers));
    }
  }
}

// Weights as integers, a loss that only training_info has, random draws in the graph.
TEST(ExportTest, SaysWhyAFileIsNotCompared) {
  const ModelFolder folder;
  const std::vector<std::pair<std::string, std::string>> models = {
      {"few_bits/nbits/model.onnx", kNotEvaluated},
      {"few_bits/tied/model.onnx", kNotEvaluated},
      {"quantized/dynamic/model.onnx", kNotEvaluated},
      {"training_info/adam.onnx",
       ": not compared with the trained weights: its graph does not compute the loss"},
      {"variety/masks.onnx", ": not compared with the trained weights: it draws at random"}};
  for (const auto& [model, phrase] : models) {
    SCOPED_TRACE(model);
    const bool own_loss = model.starts_with("training_info");
    const Words loss = own_loss ? Words{} : Words{"--loss", "cross_entropy"};
    const std::string text =
        trained_text(fsdp_run({fixture(model), "--data", "synthetic", "--eval-data", "none",
                               "--steps", "2", "--output", folder.output()}) +
                     loss);
    EXPECT_THAT(text, testing::HasSubstr("trained.onnx" + phrase));
  }
}

// The last part of a run, in this process.
struct EndedRun {
  explicit EndedRun(const Words& words) {
    auto parsed = cli::parse_command(words, {});
    EXPECT_TRUE(parsed.ok()) << parsed.error().message();
    command = *std::move(parsed);
    plugins = *load_plugins({}, false);
    communicator = *connect_ranks({}, std::chrono::seconds(60));
    const RunContext context{command.options,     command.origin, plugins->registry,
                             plugins->optimizers, *communicator,  ledger};
    auto made = PreparedRun::make(context, "");
    EXPECT_TRUE(made.ok()) << made.error().message();
    run = *std::move(made);
    state =
        *RankState::make(run->plan(), run->setup(), *communicator, ledger, run->executor_options());
  }

  FileAnswer answer(const std::string& path) const {
    return compare_with_file(*state, run->settings(), nullptr, {.path = path});
  }

  cli::ParsedCommand command;
  std::optional<LoadedPlugins> plugins;
  MemoryLedger ledger;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<PreparedRun> run;
  std::unique_ptr<RankState> state;
};

TEST(ExportTest, AFileThatAnswersOtherwiseIsFound) {
  const ModelFolder folder;
  EndedRun ended({folder.model(), "--loss", "cross_entropy", "--output", folder.output()});
  folder.write("trained.onnx", linear_model().bytes());
  const FileAnswer right = ended.answer(folder.output());
  EXPECT_THAT(right.text, testing::HasSubstr(kNotEvaluated));
  EXPECT_EQ(right.warning, "");
  SmallModel other = linear_model();
  other.initializers[1] = tensor("b", kFloat, {3}, raw<float>({0.5f, 0.01f, -0.5f}));
  folder.write("trained.onnx", other.bytes());
  const FileAnswer wrong = ended.answer(folder.output());
  EXPECT_THAT(wrong.warning, testing::HasSubstr("answers otherwise than the trained weights do"));
  EXPECT_EQ(wrong.text, "");
  folder.write("trained.onnx", "no model");
  const FileAnswer none = ended.answer(folder.output());
  EXPECT_THAT(none.text, testing::HasSubstr("not compared with the trained weights: "));
}

TEST(ExportTest, TheInferenceFormBesideAFile) {
  const ModelFolder folder;
  folder.write("model.onnx", training_model().bytes());
  const EndedRun ended({folder.model(), "--loss", "cross_entropy", "--output", folder.output()});
  EXPECT_TRUE(inference_form_differs(ended.run->setup()));
  const std::string path = folder / "model.inference.onnx";
  ASSERT_TRUE(write_inference_form(folder.model(), path).ok());
  EXPECT_EQ(changed(folder.model(), path), Words{});
  const FileAnswer answer = compare_with_file(*ended.state, ended.run->settings(), nullptr,
                                              {.path = folder.model(), .inference_path = path});
  EXPECT_THAT(answer.text, testing::HasSubstr("model.onnx keeps the training form: "));
  EXPECT_THAT(answer.text, testing::HasSubstr("model.inference.onnx" + std::string(kNotEvaluated)));
  EXPECT_EQ(answer.warning, "");
  folder.write("model.onnx", linear_model().bytes());
  const EndedRun plain({folder.model(), "--loss", "cross_entropy"});
  EXPECT_FALSE(inference_form_differs(plain.run->setup()));
}

// --- predictions

// Rows of x times w plus b, in double.
std::vector<double> linear_outputs(size_t samples) {
  std::vector<double> outputs;
  for (size_t sample = 0; sample < samples; ++sample) {
    for (size_t k = 0; k < 3; ++k) {
      double sum = std::vector<double>{0.5, 0, -0.5}[k];
      for (size_t i = 0; i < 4; ++i) {
        const double x = static_cast<double>(((4 * sample + i) * 7) % 11) / 8 - 0.5;
        sum += x * double{linear_weights()[3 * i + k]};
      }
      outputs.push_back(sum);
    }
  }
  return outputs;
}

Words predicts(const ModelFolder& folder, const std::string& output) {
  return fsdp_run({"predict", folder.model(), "--data", folder / "rows", "-o", folder / output});
}

std::vector<double> npy_values(const std::string& bytes) {
  const auto layout = parse_npy("test", std::as_bytes(std::span(bytes)));
  EXPECT_TRUE(layout.ok());
  std::vector<float> values((bytes.size() - layout->first_byte) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + layout->first_byte, values.size() * sizeof(float));
  return {values.begin(), values.end()};
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << i;
}

// 13 rows in batches of 8, 5 and 13: a short last batch, whatever the ranks; no labels.
TEST(PredictTest, WritesEveryRowInOrder) {
  const ModelFolder folder;
  folder.write("rows/x.npy", linear_inputs(13));
  for (const Words& words : {Words{}, {"--batch-size", "5"}, {"--batch-size", "13"}, ranks(2)}) {
    expect_success(predicts(folder, "out.npy") + words);
    const std::string bytes = content(folder / "out.npy");
    EXPECT_THAT(bytes, testing::HasSubstr("'shape': (13, 3)"));
    expect_near(npy_values(bytes), linear_outputs(13));
  }
}

// A model's YAML may come from the training run; a flag without effect is refused.
TEST(PredictTest, TakesTheSettingsOfATraining) {
  const ModelFolder folder;
  folder.write("rows/x.npy", linear_inputs(5));
  folder.write("model.yaml", "lr: 0.5\nparam_dtype: bfloat16\n");
  expect_success(predicts(folder, "out.npy"));
  expect_near(npy_values(content(folder / "out.npy")), linear_outputs(5));
  expect_refused(folder, predicts(folder, "o.npy") + Words{"--lr", "0.5"},
                 {"--lr has no effect with fsdp-run predict"});
}

TEST(PredictTest, WritesTextWithClasses) {
  const ModelFolder folder;
  folder.write("rows/x.npy", linear_inputs(3));
  expect_success(predicts(folder, "out.csv"));
  const std::vector<std::string> lines = lines_of(content(folder / "out.csv"));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "logits_0,logits_1,logits_2,class");
  const std::vector<double> expected = linear_outputs(3);
  for (size_t row = 0; row < 3; ++row) {
    std::istringstream line(lines[row + 1]);
    std::vector<double> found;
    for (std::string word; std::getline(line, word, ',');) found.push_back(std::stod(word));
    ASSERT_EQ(found.size(), 4u);
    const auto first = expected.begin() + static_cast<std::ptrdiff_t>(3 * row);
    const auto best = std::max_element(first, first + 3) - first;
    EXPECT_EQ(found[3], static_cast<double>(best));
    found.pop_back();
    expect_near(found, {first, first + 3});
  }
}

// A run writes the names next to the model, unless they belong to another model.
TEST(PredictTest, WritesTheNamesOfClasses) {
  const ModelFolder folder;
  folder.write("rows/x.npy", linear_inputs(7));
  const std::vector<double> scores = linear_outputs(7);
  for (const Words& names : {Words{"cat", "dog, small", "eel"}, Words{"cat", "dog"}}) {
    folder.write("classes.txt", joined(names, "\n") + "\n");
    expect_success(predicts(folder, "out.csv"));
    const Words lines = lines_of(content(folder / "out.csv"));
    ASSERT_EQ(lines.size(), 8u);
    for (size_t row = 0; row < 7; ++row) {
      const auto first = scores.begin() + static_cast<std::ptrdiff_t>(3 * row);
      const auto best = static_cast<size_t>(std::max_element(first, first + 3) - first);
      std::string expected = names.size() == 3 ? names[best] : std::to_string(best);
      if (expected == names[1] && names.size() == 3) expected = "\"dog, small\"";
      EXPECT_THAT(lines[row + 1], testing::EndsWith("," + expected));
    }
  }
}

TEST(PredictTest, AnArchiveMayHoldAnEmptyOutput) {
  const ModelFolder folder;
  folder.write("rows/x.npy", linear_inputs(7));
  SmallModel model = linear_model();
  model.initializers = {tensor("w", kFloat, {4, 0}, ""), tensor("b", kFloat, {1}, raw<float>({1}))};
  model.outputs = {declared("logits", {-1, 0})};
  folder.write("model.onnx", model.bytes());
  expect_success(predicts(folder, "out.npz"));
  const Finished unzip = Program::run({"/usr/bin/python3", "-c",
                                       "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); "
                                       "assert z.testzip() is None, z.testzip()",
                                       folder / "out.npz"});
  EXPECT_EQ(unzip.status, 0) << unzip.err;
}

TEST(PredictTest, WritesSeveralOutputsUnderTheirNames) {
  const ModelFolder folder;
  folder.write("rows/x.npy", linear_inputs(11));
  SmallModel model = linear_model();
  model.outputs.push_back(declared("products", {-1, 3}));
  folder.write("model.onnx", model.bytes());
  expect_success(predicts(folder, "out.npz"));
  expect_success(predicts(folder, "named.npy") + Words{"--prediction", "products"});
  expect_refused(folder, predicts(folder, "two.npy"), {"expected one output", "logits, products"});
  // The data reader reads it back: its zip reader is separate code from the writer.
  const Finished run = Program::run(
      fsdp_run({"predict", folder.model(), "--data", folder / "out.npz", "-o", folder / "x.npy"}));
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, testing::HasSubstr("no column 'x'"));
  const Finished unzip = Program::run({"/usr/bin/python3", "-c",
                                       "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); "
                                       "assert z.testzip() is None; "
                                       "assert z.namelist() == ['logits.npy', 'products.npy']; "
                                       "open(sys.argv[2], 'wb').write(z.read('products.npy'))",
                                       folder / "out.npz", folder / "products.npy"});
  ASSERT_EQ(unzip.status, 0) << unzip.err;
  EXPECT_TRUE(content(folder / "products.npy") == content(folder / "named.npy"));
}

TEST(PredictTest, ReadsWeightsInIntegers) {
  const ModelFolder folder;
  const std::string place = fixture("few_bits/nbits");
  expect_success(fsdp_run(
      {"predict", place + "/model.onnx", "--data", place + "/data", "-o", folder / "out.npz"}));
}

// In a run's folder, predict takes the file for inference first.
TEST(PredictTest, TakesTheFileOfARun) {
  const ModelFolder folder;
  folder.write("rows/x.npy", linear_inputs(5));
  folder.write("run/model.onnx", linear_model().bytes());
  const Words words = {"--data", folder / "rows", "-o", folder / "out.npy"};
  expect_success(fsdp_run({"predict", folder / "run"}) + words);
  expect_near(npy_values(content(folder / "out.npy")), linear_outputs(5));
  folder.write("run/model.onnx", "no model");
  folder.write("run/model.inference.onnx", linear_model().bytes());
  expect_success(fsdp_run({"predict", folder / "run"}) + words);
  const Finished none = Program::run(fsdp_run({"predict", folder / "rows"}) + words);
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, testing::HasSubstr("without model.inference.onnx and model.onnx"));
}

// A model with the loss inside: the loss needs labels, the logits do not.
TEST(PredictTest, LeavesOutWhatNeedsLabels) {
  const ModelFolder folder;
  std::filesystem::create_directory(folder / "rows");
  std::filesystem::copy(fixture("mlp/data/x.npy"), folder / "rows/x.npy");
  const std::string model = fixture("mlp/model_with_loss.onnx");
  const Words words = fsdp_run({"predict", model, "--data", folder / "rows"});
  const Finished run = Program::run(words + Words{"-o", folder / "out.npz"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, testing::HasSubstr("'loss' is left out: there is no column 'labels'\n"));
  const Finished named =
      Program::run(words + Words{"-o", folder / "o.npy", "--prediction", "loss"});
  EXPECT_EQ(named.status, 2);
  EXPECT_THAT(named.err, testing::HasSubstr("expected a column 'labels'"));
}

TEST(PredictTest, RefusesBeforeItReadsARow) {
  const ModelFolder folder;
  folder.write("rows/x.npy", linear_inputs(5));
  expect_refused(folder, predicts(folder, "out.txt"), {"-o ", "out.txt", ".npy, .npz or .csv"});
  expect_refused(folder, predicts(folder, "out.npy") + Words{"--prediction", "logit"},
                 {"--prediction logit", "did you mean 'logits'?"});
  expect_refused(folder, predicts(folder, "rows/x.npy"), {"rows/x.npy", "another file"});
}

}  // namespace export_test
}  // namespace ofsdp
