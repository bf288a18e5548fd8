// fsdp-run make-training: the written model trains to the same losses as the command that made it,
// and the gradients in the graph equal a run's. (In tests/oracle/gradient_graphs.py onnx's
// own checker and reference evaluator read the graph.)
#include <cmath>
#include <cstring>

#include "importer/normalize/onnx_import.h"
#include "importer/passes/specialize.h"
#include "runtime/engine/forward.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"
#include "tests/support/small_model.h"

namespace ofsdp {
namespace make_training_test {

using testing_data::TempFolder;

Words model_words(const std::string& name) {
  return {fixture(name + "/model.onnx"), "--data", fixture(name + "/data")};
}

struct Model {
  std::string path;
  std::string data;
};
Model mlp_model() { return {fixture("mlp/model.onnx"), fixture("mlp/data")}; }

// Trains both ways on two ranks; losses to rounding.
void expect_same_training(const Model& model, const Words& run, const Words& training) {
  SCOPED_TRACE(format_text("{} {}", model.path, joined(training, " ")));
  const TempFolder folder;
  const std::string made = folder.path() + "/made.onnx";
  const Words common = run + ranks(2) + Words{"--no-shuffle", "--eval-data", "none"};
  const Finished written = Program::run(
      fsdp_run({"make-training", model.path, "--data", model.data}) + training + Words{"-o", made});
  ASSERT_EQ(written.status, 0) << written.err;
  const Finished flags =
      Program::run(fsdp_run({model.path, "--data", model.data}) + common + training +
                   Words{"--metrics", folder.path() + "/flags.jsonl"});
  ASSERT_EQ(flags.status, 0) << flags.err;
  const Finished file = Program::run(fsdp_run({made, "--data", model.data}) + common +
                                     Words{"--metrics", folder.path() + "/file.jsonl"});
  ASSERT_EQ(file.status, 0) << file.err;
  const auto expected = losses_of(folder.path() + "/flags.jsonl");
  const auto found = losses_of(folder.path() + "/file.jsonl");
  ASSERT_FALSE(expected.empty());
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-6 * std::abs(expected[i])) << "step " << i + 1;
  }
}

TEST(MakeTrainingTest, TheFileTrainsAsTheCommand) {
  const Words run{"--steps", "8", "--global-batch-size", "16"};
  const Words loss{"--loss", "cross_entropy"};
  for (const Words& training : {
           Words{"--optimizer", "sgd", "--lr", "0.05", "--weight-decay", "0.01"},
           Words{"--optimizer", "sgd", "--lr", "0.05", "--momentum", "0.9", "--nesterov"},
           Words{"--optimizer", "sgd", "--lr", "0.05", "--momentum", "0.9", "--weight-decay",
                 "1e-3", "--no-decay", "auto", "--lr-schedule", "step", "--step-size", "3",
                 "--schedule-unit", "step"},
           Words{"--optimizer", "adam", "--lr", "0.01", "--weight-decay", "0.01"},
           Words{"--optimizer", "adamw", "--lr", "0.01", "--lr-schedule", "linear",
                 "--warmup-steps", "3", "--total-steps", "8"},
           Words{"--lr", "0.01", "--lr-schedule", "cosine", "--warmup-steps", "2", "--total-steps",
                 "6", "--min-lr-ratio", "0.1"},
           Words{"--lr-schedule", "polynomial", "--power", "2", "--total-steps", "9"},
           Words{"--optimizer", "adagrad", "--lr", "0.05", "--weight-decay", "0.01"},
           Words{"--optimizer", "adadelta", "--lr", "1"},
           Words{"--optimizer", "rmsprop", "--momentum", "0.9", "--weight-decay", "0.01"},
           Words{"--optimizer", "lion", "--lr", "0.001", "--weight-decay", "0.1"},
       }) {
    expect_same_training(mlp_model(), run, loss + training);
  }
  // The sample's model has a settings file in the same folder; a copy has none.
  const TempFolder folder;
  const std::string copy = folder.path() + "/mnist.onnx";
  std::filesystem::copy_file(sample_model("mnist/mnist.onnx"), copy);
  expect_same_training({copy, "synthetic"}, {"--steps", "3", "--global-batch-size", "8"},
                       {"--loss", "nll", "--optimizer", "adamw"});
}

// The rows of a .npy file, as bytes: the header's length stands at byte 8.
std::vector<std::byte> rows(const std::string& path, size_t bytes) {
  const std::string file = onnx_bytes::content(path);
  uint16_t header = 0;
  std::memcpy(&header, file.data() + 8, sizeof(header));
  std::vector<std::byte> made(bytes);
  std::memcpy(made.data(), file.data() + 10 + header, bytes);
  return made;
}

std::vector<float> weights(const OnnxFile& file, const std::string& name) {
  for (const Initializer& source : file.initializers()) {
    if (source.name != name) continue;
    std::vector<float> values(static_cast<size_t>(source.shape.numel()));
    EXPECT_TRUE(file.read(source, 0, values).ok());
    return values;
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

// The loss and the gradients in a written graph, by our own forward pass.
Result<std::map<std::string, std::vector<float>>> outputs_of(const std::string& path,
                                                             const std::string& data) {
  const Registry registry = make_registry();
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, OnnxFile::open(path));
  OFSDP_ASSIGN_OR_RETURN(const Graph imported, import_onnx(file, registry));
  std::map<std::string, Shape> shapes;
  for (const ValueId id : imported.inputs) {
    std::vector<int64_t> axes;
    for (const Dim& dim : imported.value(id).declared) axes.push_back(dim.size);
    shapes[imported.value(id).name] = Shape(axes);
  }
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, specialize(imported, shapes, Mode::kTrain));
  Feeds feeds;
  for (const ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    feeds[id] = rows(data + "/" + value.name + ".npy", value.desc.bytes());
  }
  for (const Parameter& p : graph.parameters) {
    const auto values = weights(file, p.name);
    const auto bytes = std::as_bytes(std::span(values));
    feeds[p.value].assign(bytes.begin(), bytes.end());
  }
  return run_forward(graph, std::move(feeds));
}

// One plain SGD update with rate 1 subtracts the gradient. `frozen`: initializers without one.
void expect_gradients(const std::string& name, const Words& loss, size_t frozen = 0) {
  SCOPED_TRACE(name);
  const TempFolder folder;
  const std::string made = folder.path() + "/graph.onnx", trained = folder.path() + "/out.onnx";
  const Words common = model_words(name) + loss + Words{"--batch-size", "4"};
  const Finished written =
      Program::run(fsdp_run({"make-training"}) + common + Words{"--form", "graph", "-o", made});
  ASSERT_EQ(written.status, 0) << written.err;
  const Finished run = Program::run(fsdp_run(common) +
                                    Words{"--no-shuffle", "--steps", "1", "--optimizer", "sgd",
                                          "--lr", "1", "--eval-data", "none", "--output", trained});
  ASSERT_EQ(run.status, 0) << run.err;
  const auto outputs = outputs_of(made, fixture(name + "/data"));
  ASSERT_TRUE(outputs.ok()) << outputs.error().message();
  const auto before = OnnxFile::open(fixture(name + "/model.onnx")),
             after = OnnxFile::open(trained);
  size_t compared = 0;
  for (const auto& [output, gradient] : *outputs) {
    if (!output.ends_with("_grad")) continue;
    const std::string parameter = output.substr(0, output.size() - 5);
    const auto old_values = weights(*before, parameter), new_values = weights(*after, parameter);
    ASSERT_EQ(gradient.size(), old_values.size());
    for (size_t i = 0; i < gradient.size(); ++i)
      ASSERT_NEAR(gradient[i], old_values[i] - new_values[i], 1e-6) << parameter << " " << i;
    ++compared;
  }
  EXPECT_EQ(compared + frozen, before->initializers().size());
}

TEST(MakeTrainingTest, TheGraphHasTheGradients) {
  expect_gradients("mlp", {"--loss", "cross_entropy"});
  expect_gradients("norms", {"--loss", "cross_entropy"}, /*frozen=*/2);  // running statistics
}

// A weight may have the name that another's gradient would get.
TEST(MakeTrainingTest, GradientsTakeNoNameOfTheFile) {
  const ModelFolder folder;
  onnx_bytes::SmallModel model = onnx_bytes::linear_model();
  model.nodes[1] = onnx_bytes::node("Add", {"products", "w_grad"}, {"logits"}, "add");
  model.initializers[1] = onnx_bytes::tensor("w_grad", onnx_bytes::kFloat, {3},
                                             onnx_bytes::raw<float>({0.5f, 0, -0.5f}));
  folder.write("model.onnx", model.bytes());
  const std::string made = folder / "graph.onnx";
  const Finished run =
      Program::run(fsdp_run({"make-training", folder.model(), "--data", folder / "data", "--loss",
                             "cross_entropy", "--form", "graph", "--batch-size", "4", "-o", made}));
  ASSERT_EQ(run.status, 0) << run.err;
  const auto file = OnnxFile::open(made);
  ASSERT_TRUE(file.ok());
  const auto graph = import_onnx(*file, make_registry());
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  Words outputs;
  for (const ValueId id : graph->outputs) outputs.push_back(graph->value(id).name);
  EXPECT_EQ(outputs, (Words{"loss", "w_grad.1", "w_grad_grad"}));
}

TEST(MakeTrainingTest, WhatAFileCannotSayIsRefused) {
  const TempFolder folder;
  const std::string made = folder.path() + "/made.onnx";
  const Words command = fsdp_run({"make-training"}) + model_words("mlp") +
                        Words{"--loss", "cross_entropy", "-o", made};
  const std::vector<std::pair<Words, Words>> bad = {
      {{"--clip-grad-norm", "1"}, {"--clip-grad-norm"}},
      {{"--lr-schedule", "cosine"}, {"--total-steps"}},
      {{"--lr-schedule", "step"}, {"--schedule-unit", "epoch"}},
      {{"--label-smoothing", "0.1"}, {"--label-smoothing"}},
      {{"--label-smoothing", "0.1", "--form", "graph"}, {"label_smoothing"}},
      {{"--form", "onnx"}, {"--form", "'onnx'"}},
  };
  for (const auto& [words, facts] : bad) {
    SCOPED_TRACE(format_text("{}", joined(words, " ")));
    const Finished run = Program::run(command + words);
    EXPECT_EQ(run.status, 2);
    expect_one_line(run.err, facts);
    EXPECT_FALSE(std::filesystem::exists(made));
  }
  const Finished twice = Program::run(fsdp_run(
      {"make-training", fixture("training_info/adam.onnx"), "--data", fixture("training_info/data"),
       "--training-info", "off", "--loss", "mse", "--labels", "target", "-o", made}));
  EXPECT_EQ(twice.status, 2);
  expect_one_line(twice.err, {"adam.onnx", "without training_info"});
}

}  // namespace make_training_test
}  // namespace ofsdp
