// Models that describe their training, against the standard's formulas in double
// (tests/oracle/training_info_models.py): losses, weights, optimizer state and scalars after four
// updates, for 1, 2 and 3 ranks; the written file trains on; wrong models are refused.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "importer/file/onnx_file.h"
#include "importer/training_source.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace training_info_test {

using testing_data::TempFolder;

Words train(const std::string& model, const std::string& data, int64_t world, int64_t steps) {
  return fsdp_run({model, "--data", data, "--no-shuffle", "--global-batch-size", "6", "--steps",
                   std::to_string(steps), "--wrap", "size", "--min-params", "8"}) +
         ranks(static_cast<int>(world));
}

std::string model_of(const std::string& name) { return fixture("training_info/" + name + ".onnx"); }
std::string data() { return fixture("training_info/data"); }

nlohmann::json parsed(const std::string& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

void expect_close(const std::vector<double>& found, const std::vector<double>& expected,
                  const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 2e-6 * std::max(1.0, std::abs(expected[i])))
        << what << " " << i;
  }
}

std::vector<double> values(const OnnxFile& file, const Initializer& source) {
  std::vector<float> floats(static_cast<size_t>(source.shape.numel()));
  EXPECT_TRUE(file.read(source, 0, floats).ok());
  return {floats.begin(), floats.end()};
}

// Every floating-point value that the oracle has; returns the number of tensors.
size_t expect_values(const std::string& path, const nlohmann::json& expected) {
  const auto file = OnnxFile::open(path);
  EXPECT_TRUE(file.ok());
  size_t compared = 0;
  const auto compare = [&](const Initializer& source) {
    if (!is_floating(source.dtype) || !expected.contains(source.name)) return;
    expect_close(values(*file, source), expected[source.name], path + ": " + source.name);
    ++compared;
  };
  for (const Initializer& source : file->initializers()) compare(source);
  for (const AlgorithmTensor& t : file->contents().algorithm_tensors) compare(t.initializer);
  return compared;
}

const std::vector<std::string> kModels = {"adam", "adagrad", "momentum", "nesterov",
                                          "sgd",  "program", "two_steps"};

TEST(TrainingInfoTest, FollowsTheFormulasOnAnyNumberOfRanks) {
  for (const std::string& name : kModels) {
    const auto expected = parsed(fixture("training_info/" + name + ".json"));
    for (const int world : {1, 2, 3}) {
      SCOPED_TRACE(format_text("{} with {} ranks", name, world));
      const TempFolder folder;
      const std::string output = folder.path() + "/out.onnx", metrics = folder.path() + "/m.jsonl";
      const Finished run = Program::run(train(model_of(name), data(), world, 4) +
                                        Words{"--output", output, "--metrics", metrics});
      ASSERT_EQ(run.status, 0) << run.err;
      EXPECT_EQ(run.err, "");
      expect_close(losses_of(metrics), expected["losses"], "loss");
      EXPECT_EQ(expect_values(output, expected["values"]), expected["values"].size());
    }
  }
}

// Two updates, then two more from the written file: state, count and rate go on.
TEST(TrainingInfoTest, WhatIsWrittenTrainsOn) {
  for (const std::string& name : kModels) {
    SCOPED_TRACE(name);
    const auto expected = parsed(fixture("training_info/" + name + ".json"));
    const TempFolder folder;
    const std::string half = folder.path() + "/half.onnx", output = folder.path() + "/out.onnx";
    const Finished first =
        Program::run(train(model_of(name), data(), 2, 2) + Words{"--output", half});
    ASSERT_EQ(first.status, 0) << first.err;
    const Finished second = Program::run(train(half, data(), 1, 2) + Words{"--output", output});
    ASSERT_EQ(second.status, 0) << second.err;
    expect_values(output, expected["values"]);
  }
}

TEST(TrainingInfoTest, GoesOnFromACheckpoint) {
  for (const std::string& name : {std::string("adam"), std::string("sgd")}) {
    SCOPED_TRACE(name);
    const auto expected = parsed(fixture("training_info/" + name + ".json"));
    const TempFolder folder;
    const std::string output = folder.path() + "/out.onnx";
    const Words saved{"--checkpoint-dir", folder.path() + "/c", "--checkpoint-interval", "1step"};
    const Finished first = Program::run(train(model_of(name), data(), 2, 2) + saved);
    ASSERT_EQ(first.status, 0) << first.err;
    const Finished second = Program::run(train(model_of(name), data(), 3, 4) + saved +
                                         Words{"--resume", "latest", "--output", output});
    ASSERT_EQ(second.status, 0) << second.err;
    EXPECT_EQ(expect_values(output, expected["values"]), expected["values"].size());
  }
}

// The file has other weights, states and count of updates; all are replaced.
TEST(TrainingInfoTest, InitializationGraphsRunWhenAsked) {
  const auto expected = parsed(fixture("training_info/momentum.json"));
  for (const int world : {1, 3}) {
    const TempFolder folder;
    const std::string output = folder.path() + "/out.onnx";
    const Words command =
        train(model_of("initialized"), data(), world, 4) + Words{"--output", output};
    const Finished run = Program::run(command + Words{"--initialize"});
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_EQ(expect_values(output, expected["values"]), expected["values"].size());
  }
  const Finished none = Program::run(train(model_of("adam"), data(), 1, 1) + Words{"--initialize"});
  EXPECT_EQ(none.status, 2);
  expect_one_line(none.err, {"--initialize", "adam.onnx"});
}

TEST(TrainingInfoTest, RandomInitializationIsThatOfTheSeed) {
  const TempFolder folder;
  const auto bytes = [&](int world, const std::string& seed) {
    const std::string output = folder.path() + "/out.onnx";
    const Finished run = Program::run(train(model_of("random"), data(), world, 1) +
                                      Words{"--initialize", "--seed", seed, "--output", output});
    EXPECT_EQ(run.status, 0) << run.err;
    const auto file = OnnxFile::open(output);
    return values(*file, file->initializers()[0]);
  };
  const auto one = bytes(1, "3");
  expect_close(bytes(2, "3"), one, "two ranks");
  EXPECT_NE(bytes(1, "4"), one);
}

// The graph from Gradient's documentation: dY/dW and dY/dZ.
TEST(TrainingInfoTest, TheExampleOfGradientsOwnPage) {
  const auto expected = parsed(fixture("training_info/documented.json"));
  const TempFolder folder;
  const std::string output = folder.path() + "/out.onnx", metrics = folder.path() + "/m.jsonl";
  const Finished run = Program::run(
      fsdp_run({model_of("documented"), "--data", fixture("training_info/documented_data"),
                "--batch-size", "4", "--steps", "1", "--output", output, "--metrics", metrics}));
  ASSERT_EQ(run.status, 0) << run.err;
  expect_close(losses_of(metrics), expected["losses"], "loss");
  EXPECT_EQ(expect_values(output, expected["values"]), 2u);
}

TEST(TrainingInfoTest, TheModelsOwnAlgorithmOrTheFlags) {
  const TempFolder folder;
  const Words command = train(model_of("adam"), data(), 1, 1);
  for (const Words& flag : {Words{"--optimizer", "sgd"}, Words{"--lr", "0.1"},
                            Words{"--freeze", "b1"}, Words{"--loss", "output:o"}}) {
    const Finished run = Program::run(command + flag);
    EXPECT_EQ(run.status, 2);
    expect_one_line(run.err, {flag[0], "adam.onnx", "training_info"});
  }
  const Finished run = Program::run(command + Words{"--training-info", "off", "--loss", "mse",
                                                    "--labels", "target", "--optimizer", "sgd"});
  EXPECT_EQ(run.status, 0) << run.err;
}

TEST(TrainingInfoTest, WhatIsWrongIsNamed) {
  const std::vector<std::pair<std::string, Words>> bad = {
      {"missing_key", {"training_info[0]", "'W9'", "initializer"}},
      {"missing_value", {"training_info[0]", "'W1_newer'", "output"}},
      {"off_path", {"'Gradient_g_W1' (Gradient)", "xs names 'W1'", "'loss' does not depend"}},
      {"no_initializer", {"(Gradient)", "xs names 'h'", "initializer"}},
      {"mixes", {"(Mul)", "mixes the parameters", "'W2'", "'b2'"}},
      {"norm", {"(ReduceSum)", "not elementwise"}},
      {"shape", {"'m'", "[1, 2]", "[2]"}},
      {"second_loss", {"(Gradient)", "'loss'", "'dd'"}},
      {"other_values", {"(Gradient)", "other values"}},
      {"data_dependent", {"update_binding of 'W1'", "computed from the data"}},
  };
  for (const auto& [name, facts] : bad) {
    for (const int world : {1, 2}) {
      SCOPED_TRACE(name);
      const Finished run = Program::run(train(model_of("bad_" + name), data(), world, 1));
      EXPECT_EQ(run.status, 2) << run.err;
      expect_one_line(run.err, facts);
      expect_one_line(run.err, {"bad_" + name + ".onnx"});
    }
  }
}

}  // namespace training_info_test
}  // namespace ofsdp
