// linear_model() with a Softmax or Sigmoid at the end of the prediction, in one piece or several,
// and runs of it.
//
// Threads: one. Errors: test failures.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace prediction_ends {

using namespace onnx_bytes;  // NOLINT: the words of this file

// A name for a form of Softmax or Sigmoid, and the nodes from logits to p.
struct End {
  const char* name;
  std::vector<std::string> nodes;
};

inline std::vector<End> softmax_ends() {
  const std::vector<std::string> powers = {node("ReduceMax", {"logits", "last"}, {"m"}, "most"),
                                           node("Sub", {"logits", "m"}, {"d"}, "difference"),
                                           node("Exp", {"d"}, {"e"}, "power"),
                                           node("ReduceSum", {"e", "last"}, {"s"}, "sum")};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), powers.begin(), powers.end());
    return more;
  };
  return {{"Softmax 'end'", {node("Softmax", {"logits"}, {"p"}, "end")}},
          {"LogSoftmax 'end'", {node("LogSoftmax", {"logits"}, {"p"}, "end")}},
          {"Softmax 'end'",
           {node("Softmax", {"logits"}, {"q"}, "end"), node("Identity", {"q"}, {"p"}, "copy")}},
          {"Softmax 'end'", with({node("Div", {"e", "s"}, {"p"}, "end")})},
          {"LogSoftmax 'end'",
           with({node("Log", {"s"}, {"l"}, "log"), node("Sub", {"d", "l"}, {"p"}, "end")})}};
}

inline std::vector<End> sigmoid_ends() {
  return {{"Sigmoid 'end'", {node("Sigmoid", {"logits"}, {"p"}, "end")}},
          {"Sigmoid 'end'",
           {node("Neg", {"logits"}, {"n"}, "minus"), node("Exp", {"n"}, {"e"}, "power"),
            node("Add", {"e", "one"}, {"a"}, "more"), node("Div", {"one", "a"}, {"p"}, "end")}}};
}

inline SmallModel with_end(const End& end, const std::vector<float>& weights = linear_weights()) {
  SmallModel model = linear_model();
  model.nodes.insert(model.nodes.end(), end.nodes.begin(), end.nodes.end());
  model.initializers[0] = tensor("w", kFloat, {4, 3}, raw(weights));
  model.initializers.push_back(tensor("last", kInt64, {1}, raw<int64_t>({1})));
  model.initializers.push_back(tensor("one", kFloat, {1}, raw<float>({1})));
  model.outputs = {declared("p", {-1, 3})};
  return model;
}

// The rows of steps and evaluations, the trained weights, and the opening lines of a run.
struct EndRun {
  std::vector<nlohmann::json> steps, evaluations;
  std::vector<float> weights;
  std::string text;
};

inline EndRun run_of(const ModelFolder& folder, const SmallModel& model, const Words& options) {
  folder.write("model.onnx", model.bytes());
  const std::string metrics = folder / "metrics.jsonl";
  const Finished run =
      Program::run(fsdp_run({folder.model(), "--optimizer", "sgd", "--lr", "0.5",
                             "--global-batch-size", "12", "--steps", "4", "--threads", "1",
                             "--metrics", metrics, "--output", folder.output()}) +
                   options);
  EXPECT_EQ(run.status, 0) << run.err;
  EndRun made{rows_of(metrics, "step"), rows_of(metrics, "eval"), {}, run.out + run.err};
  const auto file = importer::OnnxFile::open(folder.output());
  if (!file.ok()) return made;
  for (const importer::Initializer& weight : file->initializers()) {
    if (weight.name != "w" && weight.name != "b") continue;
    std::vector<float> values(static_cast<size_t>(weight.shape.numel()));
    EXPECT_TRUE(file->read(weight, 0, values).ok());
    made.weights.insert(made.weights.end(), values.begin(), values.end());
  }
  return made;
}

inline void expect_same_rows(const std::vector<nlohmann::json>& found,
                             const std::vector<nlohmann::json>& wanted,
                             const std::vector<std::string>& keys) {
  ASSERT_EQ(found.size(), wanted.size());
  ASSERT_FALSE(found.empty());
  for (size_t i = 0; i < found.size(); ++i) {
    for (const std::string& key : keys) EXPECT_EQ(found[i].at(key), wanted[i].at(key)) << key;
  }
}

}  // namespace prediction_ends
}  // namespace ofsdp
