// Losses of a linear model in runs of the real program, against plain loops in double; and losses
// that see through the end of the prediction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "importer/file/onnx_file.h"
#include "tests/support/device_runs.h"
#include "tests/support/loss_rows.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/prediction_ends.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace one_loss_test {

using namespace loss_rows;        // NOLINT: the words of this test
using namespace onnx_bytes;       // NOLINT: of this test as well
using namespace prediction_ends;  // NOLINT: of this test as well
using nlohmann::json;
using testing_data::npy;

// linear_model() with an operator after the scores, trained by plain loops.
enum class Head { kScores, kSoftmax, kSigmoid, kL1, kSmoothL1 };

class WeightedLosses : public ModelFolder {
 public:
  explicit WeightedLosses(Head head) : head_(head) {
    SmallModel model = linear_model();
    if (head == Head::kSoftmax || head == Head::kSigmoid) {
      model.nodes.push_back(
          node(head == Head::kSoftmax ? "Softmax" : "Sigmoid", {"logits"}, {"p"}, "last"));
      model.outputs = {declared("p", {-1, 3})};
    }
    write("model.onnx", model.bytes());
    std::vector<int64_t> labels;
    std::vector<float> bits;
    for (size_t i = 0; i < kRows; ++i) labels.push_back(label_of(i));
    for (size_t i = 0; i < kRows * 3; ++i) bits.push_back(bit(i));
    write("data/labels.npy", npy("<i8", "(12,)", labels));
    write("bits/x.npy", linear_inputs());
    write("bits/labels.npy", npy("<f4", "(12, 3)", bits));
    for (float& bit : bits) bit = 3 * bit - 1;
    write("numbers/x.npy", linear_inputs());
    write("numbers/labels.npy", npy("<f4", "(12, 3)", bits));
    write("weights.npy", npy("<f8", "(3,)", std::vector<double>{1, 0.5, 4}));
    write("weights.txt", "1, 0.5\n4\n");
  }

  static float bit(size_t i) { return i * i % 5 < 2 ? 1 : 0; }

  // Losses in three updates. `weights`: for classes or for positive labels.
  std::vector<double> expected(const Triple& weights) const {
    const std::vector<float> from = linear_weights();
    std::vector<double> w(from.begin(), from.end()), losses;
    Triple b{0.5, 0, -0.5};
    for (int step = 0; step < 3; ++step) {
      double loss = 0, divisor = 0;
      std::array<double, 12> dw{};
      Triple db{};
      for (size_t r = 0; r < kRows; ++r) {
        Triple z = b;
        for (size_t i = 0; i < 12; ++i) z[i % 3] += x(r, i / 3) * w[i];
        const Triple dz = slopes(r, z, weights, loss, divisor);
        for (size_t i = 0; i < 12; ++i) dw[i] += x(r, i / 3) * dz[i % 3];
        for (size_t c = 0; c < 3; ++c) db[c] += dz[c];
      }
      losses.push_back(loss / divisor);
      for (size_t i = 0; i < 12; ++i) w[i] -= kRate * dw[i] / divisor;
      for (size_t c = 0; c < 3; ++c) b[c] -= kRate * db[c] / divisor;
    }
    return losses;
  }

  void expect_losses(const Words& options, const Triple& weights, const char* data) const {
    for (const int n : {1, 2}) {
      const std::string metrics = *this / "metrics.jsonl";
      const Finished run =
          Program::run(fsdp_run({model(), "--data", *this / data, "--optimizer", "sgd", "--lr",
                                 "0.5", "--weight-decay", "0", "--global-batch-size", "12",
                                 "--steps", "3", "--threads", "1", "--metrics", metrics}) +
                       options + ranks(n));
      ASSERT_EQ(run.status, 0) << run.err;
      const std::vector<double> found = losses_of(metrics), wanted = expected(weights);
      ASSERT_EQ(found.size(), wanted.size());
      for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 2e-6) << i;
    }
  }

 private:
  Triple slopes(size_t row, const Triple& z, const Triple& weights, double& loss,
                double& divisor) const {
    Triple dz{};
    const int64_t label = label_of(row);
    if (head_ == Head::kSoftmax && label < 0) return dz;
    if (head_ == Head::kSoftmax) {
      const double weight = weights[static_cast<size_t>(label)];
      dz = softmax(z, 1);
      loss -= weight * std::log(dz[static_cast<size_t>(label)]);
      divisor += weight;
      dz[static_cast<size_t>(label)] -= 1;
      for (double& v : dz) v *= weight;
      return dz;
    }
    if (head_ == Head::kL1 || head_ == Head::kSmoothL1) {
      for (size_t c = 0; c < 3; ++c) {
        const double apart = z[c] - (3.0 * static_cast<double>(bit(row * 3 + c)) - 1);
        const double far = std::abs(apart);
        const bool near = head_ == Head::kSmoothL1 && far < 1;
        loss += near ? far * far / 2 : head_ == Head::kL1 ? far : far - 0.5;
        dz[c] = near ? apart : apart / far;
        divisor += 1;
      }
      return dz;
    }
    for (size_t c = 0; c < 3; ++c) {
      const double p = 1 / (1 + std::exp(-z[c])), t = static_cast<double>(bit(row * 3 + c));
      loss -= weights[c] * t * std::log(p) + (1 - t) * std::log(1 - p);
      divisor += 1;
      dz[c] = (1 - t) * p - weights[c] * t * (1 - p);
    }
    return dz;
  }

  Head head_;
};

TEST(WeightedLoss, ProbabilitiesAreTakenAsTheyAre) {
  const WeightedLosses classes(Head::kSoftmax), bits(Head::kSigmoid);
  classes.expect_losses({"--loss", "nll_probabilities"}, {1, 1, 1}, "data");
  bits.expect_losses({"--loss", "bce"}, {1, 1, 1}, "bits");
}

TEST(WeightedLoss, ClassesHaveWeights) {
  const WeightedLosses folder(Head::kSoftmax);
  for (const std::string& given :
       {std::string("1,0.5,4"), folder / "weights.npy", folder / "weights.txt"}) {
    folder.expect_losses({"--loss", "nll_probabilities", "--class-weights", given}, {1, 0.5, 4},
                         "data");
  }
}

TEST(WeightedLoss, PositiveLabelsHaveWeights) {
  const WeightedLosses folder(Head::kScores);
  folder.expect_losses({"--loss", "bce_with_logits", "--pos-weight", "3"}, {3, 3, 3}, "bits");
  folder.expect_losses({"--loss", "bce_with_logits", "--pos-weight", "1,0.5,4"}, {1, 0.5, 4},
                       "bits");
}

TEST(ValueLoss, DistancesCountAsTheyAre) {
  const WeightedLosses far(Head::kL1), smooth(Head::kSmoothL1);
  far.expect_losses({"--loss", "l1"}, {1, 1, 1}, "numbers");
  smooth.expect_losses({"--loss", "smooth_l1"}, {1, 1, 1}, "numbers");
}

constexpr int kDouble = 11;

std::string cast_to_double(const std::string& from, const std::string& to) {
  const std::string type = message(5, message(1, "to") + number(3, kDouble) + number(20, 2));
  return node("Cast", {from}, {to}, "widen") + type;
}

// The loss is computed in float32, whatever the type of the prediction at the end of the file.
TEST(ValueLoss, APredictionOfAnotherTypeIsReadAsFloat32) {
  const WeightedLosses folder(Head::kL1);
  SmallModel model = linear_model();
  model.nodes.push_back(cast_to_double("logits", "wide"));
  model.outputs = {declared("wide", {-1, 3}, kDouble)};
  folder.write("model.onnx", model.bytes());
  folder.expect_losses({"--loss", "l1"}, {1, 1, 1}, "numbers");
}

// A file that computes its loss itself, the mean of all |x w + b|, in two types.
TEST(ValueLoss, ALossOfAnotherTypeIsReadAsFloat32) {
  const ModelFolder folder;
  folder.write("data/x.npy", linear_inputs());
  SmallModel model = linear_model();
  const std::string flat = message(5, message(1, "keepdims") + number(3, 0) + number(20, 2));
  model.nodes.push_back(node("Abs", {"logits"}, {"sizes"}, "size"));
  model.nodes.push_back(node("ReduceMean", {"sizes"}, {"loss"}, "mean") + flat);
  model.outputs = {declared("loss", {})};
  const auto losses = [&] {
    folder.write("model.onnx", model.bytes());
    const std::string metrics = folder / "metrics.jsonl";
    const Finished run = Program::run(fsdp_run({folder.model(), "--data", folder / "data", "--lr",
                                                "0.1", "--steps", "3", "--metrics", metrics}));
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.err, testing::Not(testing::HasSubstr("warning")));
    return losses_of(metrics);
  };
  const std::vector<double> narrow = losses();
  model.nodes.push_back(cast_to_double("loss", "wide"));
  model.outputs = {declared("wide", {}, kDouble)};
  EXPECT_THAT(narrow, testing::SizeIs(3));
  EXPECT_EQ(losses(), narrow);
}

TEST(ValueLoss, DevicesGiveTheBitsOfTheCpu) {
  const WeightedLosses folder(Head::kL1);
  for (const char* loss : {"l1", "smooth_l1"}) {
    for (const char* dtype : {"float32", "bfloat16"}) {
      const Words run = fsdp_run({folder.model(), "--data", folder / "numbers", "--loss", loss,
                                  "--param-dtype", dtype, "--steps", "3"});
      expect_bits_of_the_cpu(run);
      expect_near_losses(on_cpu(run), run_on_device(OFSDP_EMULATED_DEVICE, run), 1e-2);
    }
  }
}

// A probability of 0 counts as e^-100, and makes no NaN in the gradient.
TEST(WeightedLoss, AProbabilityOfZeroCountsAHundred) {
  WeightedLosses folder(Head::kSigmoid);
  SmallModel model = linear_model();
  model.nodes.push_back(node("Relu", {"logits"}, {"r"}, "no_negatives"));
  model.nodes.push_back(node("Tanh", {"r"}, {"p"}, "last"));
  model.initializers[1] = tensor("b", kFloat, {3}, raw<float>({-9, -9, -9}));
  model.outputs = {declared("p", {-1, 3})};
  folder.write("model.onnx", model.bytes());
  const std::string metrics = folder / "metrics.jsonl";
  const Finished run =
      Program::run(fsdp_run({folder.model(), "--data", folder / "bits", "--loss", "bce", "--steps",
                             "2", "--global-batch-size", "12", "--metrics", metrics}));
  ASSERT_EQ(run.status, 0) << run.err;
  double positive = 0;
  for (size_t i = 0; i < kRows * 3; ++i) positive += static_cast<double>(WeightedLosses::bit(i));
  EXPECT_NEAR(losses_of(metrics)[0], 100 * positive / 36, 1e-4);
}

TEST(WeightedLoss, WrongWeightsAreRefused) {
  const WeightedLosses folder(Head::kSoftmax);
  const Words train = fsdp_run({folder.model(), "--data", folder / "data", "--steps", "1"});
  expect_refused(folder, train + Words{"--loss", "nll_probabilities", "--class-weights", "1,2"},
                 {"--class-weights: expected 3 numbers", "found 2"});
  expect_refused(folder, train + Words{"--loss", "nll_probabilities", "--class-weights", "0,0,0"},
                 {"--class-weights: expected a weight above 0"});
  expect_refused(folder, train + Words{"--loss", "mse", "--class-weights", "1,2"},
                 {"--class-weights has no effect with --loss mse"});
  expect_refused(folder, train + Words{"--loss", "bce_with_logits", "--pos-weight", "-1"},
                 {"--pos-weight: expected numbers of at least 0", "'-1'"});
}

// A loss on scores trains each end to the bits of the model without it, with the metrics.
void expect_seen_through(const std::vector<End>& ends, const Words& loss, const char* data,
                         const std::vector<std::string>& metrics) {
  const WeightedLosses folder(Head::kScores);
  for (const int n : {1, 2}) {
    const Words options =
        loss + Words{"--data", folder / data, "--eval-data", folder / data} + ranks(n);
    const EndRun plain = run_of(folder, linear_model(), options);
    EXPECT_THAT(plain.text, testing::Not(testing::HasSubstr("it takes the scores")));
    for (const End& end : ends) {
      SCOPED_TRACE(format_text("{} of {} nodes, {} ranks", end.name, end.nodes.size(), n));
      const EndRun run = run_of(folder, with_end(end), options);
      EXPECT_EQ(run.weights, plain.weights);
      expect_same_rows(run.steps, plain.steps, {"loss"});
      expect_same_rows(run.evaluations, plain.evaluations, metrics);
      EXPECT_THAT(run.text, testing::Not(testing::HasSubstr("not compared")));
      EXPECT_THAT(run.text,
                  testing::HasSubstr(format_text("it takes the scores before {}", end.name)));
    }
  }
}

TEST(ScoresBefore, CrossEntropyTakesThoseBeforeASoftmax) {
  expect_seen_through(softmax_ends(),
                      {"--loss", "cross_entropy", "--eval-metrics", "accuracy,top2,f1,perplexity"},
                      "data", {"loss", "accuracy", "top2", "f1", "perplexity"});
}

TEST(ScoresBefore, BceWithLogitsTakesThoseBeforeASigmoid) {
  expect_seen_through(sigmoid_ends(), {"--loss", "bce_with_logits", "--eval-metrics", "auc"},
                      "bits", {"loss", "auc"});
}

// Two classes as scikit-learn's converter writes them: the loss reads the logit.
TEST(ScoresBefore, TwoClassesOfASigmoid) {
  const WeightedLosses folder(Head::kScores);
  SmallModel model = linear_model();
  model.initializers = {tensor("w", kFloat, {4, 1}, raw<float>({0.5, -1, 0.25, 2})),
                        tensor("b", kFloat, {1}, raw<float>({0.5})),
                        tensor("one", kFloat, {}, raw<float>({1}))};
  const std::string axis = message(5, message(1, "axis") + number(3, 1) + number(20, 2));
  const std::vector<std::string> end = {node("Sigmoid", {"logits"}, {"q"}, "sigmoid"),
                                        node("Sub", {"one", "q"}, {"r"}, "rest"),
                                        node("Concat", {"r", "q"}, {"p"}, "both") + axis};
  std::vector<int64_t> labels;
  std::vector<float> bits;
  for (size_t i = 0; i < kRows; ++i) {
    labels.push_back(i * i % 5 < 2);
    bits.push_back(static_cast<float>(labels.back()));
  }
  folder.write("two/x.npy", linear_inputs());
  folder.write("two/labels.npy", npy("<i8", "(12,)", labels));
  folder.write("one/x.npy", linear_inputs());
  folder.write("one/labels.npy", npy("<f4", "(12, 1)", bits));
  for (const int n : {1, 2}) {
    model.outputs = {declared("logits", {-1, 1})};
    const EndRun logit = run_of(
        folder, model, ranks(n) + Words{"--loss", "bce_with_logits", "--data", folder / "one"});
    SmallModel both = model;
    both.nodes.insert(both.nodes.end(), end.begin(), end.end());
    both.outputs = {declared("p", {-1, 2})};
    const EndRun run = run_of(folder, both,
                              ranks(n) + Words{"--loss", "cross_entropy", "--data", folder / "two",
                                               "--eval-data", folder / "two"});
    EXPECT_THAT(run.text, testing::HasSubstr("scores before the two classes 'both'"));
    ASSERT_EQ(run.weights.size(), logit.weights.size());
    for (size_t i = 0; i < run.weights.size(); ++i) {
      EXPECT_NEAR(run.weights[i], logit.weights[i], 2e-6);
    }
    for (size_t i = 0; i < run.steps.size(); ++i) {
      EXPECT_NEAR(run.steps[i].at("loss"), logit.steps[i].at("loss").get<double>(), 2e-6);
    }
    EXPECT_GT(run.evaluations.at(0).at("accuracy"), 0.4);
  }
}

// F1 per column against a plain loop; on several ranks, from scores and from probabilities.
TEST(MetricsOfLabels, F1OfScoresAndProbabilities) {
  for (const Head head : {Head::kScores, Head::kSigmoid}) {
    const WeightedLosses folder(head);
    const Triple bias{0.5, 0, -0.5};
    double right[3] = {}, both[3] = {};
    for (size_t i = 0; i < kRows * 3; ++i) {
      double z = bias[i % 3];
      for (size_t k = 0; k < 4; ++k) z += x(i / 3, k) * linear_weights()[3 * k + i % 3];
      const double predicted = z > 0 ? 1 : 0, label = WeightedLosses::bit(i);
      right[i % 3] += predicted * label;
      both[i % 3] += predicted + label;
    }
    const double micro = 2 * (right[0] + right[1] + right[2]) / (both[0] + both[1] + both[2]);
    double macro = 0;
    for (size_t c = 0; c < 3; ++c) macro += 2 * right[c] / both[c] / 3;
    for (const int n : {1, 3}) {
      const char* loss = head == Head::kScores ? "bce_with_logits" : "bce";
      const Finished run = Program::run(
          fsdp_run({"eval", folder.model(), "--data", folder / "bits", "--loss", loss,
                    "--eval-metrics", "f1,f1_micro", "--metrics", folder / "m.jsonl"}) +
          ranks(n));
      ASSERT_EQ(run.status, 0) << run.err;
      const auto row = rows_of(folder / "m.jsonl", "eval").at(0);
      EXPECT_NEAR(row.at("f1").get<double>(), macro, 1e-9) << n;
      EXPECT_NEAR(row.at("f1_micro").get<double>(), micro, 1e-9) << n;
    }
  }
}

TEST(ScoresBefore, OtherLossesTakeThePredictionItself) {
  const WeightedLosses folder(Head::kScores);
  const auto text = [&](const End& end, const char* loss) {
    return run_of(folder, with_end(end),
                  {"--loss", loss, "--data",
                   folder / (std::string(loss).starts_with("nll") ? "data" : "bits")})
        .text;
  };
  const std::vector<End> ends = softmax_ends();
  for (const std::string& found : {text(ends[0], "nll_probabilities"), text(ends[1], "nll"),
                                   text(sigmoid_ends()[0], "bce"), text(ends[0], "mse")}) {
    EXPECT_THAT(found, testing::Not(testing::HasSubstr("it takes the scores")));
  }
}

TEST(ScoresBefore, ATeacherEndsLikeItsStudent) {
  const WeightedLosses folder(Head::kScores);
  SmallModel scores = linear_model();
  scores.initializers[0] = tensor("w", kFloat, {4, 3}, raw(teacher_weights()));
  folder.write("scores.onnx", scores.bytes());
  const std::vector<End> ends = softmax_ends();
  folder.write("softmax.onnx", with_end(ends[3], teacher_weights()).bytes());
  const Words options{"--loss", "cross_entropy", "--data", folder / "data", "--teacher"};
  const EndRun plain = run_of(folder, linear_model(), options + Words{folder / "scores.onnx"});
  const EndRun run = run_of(folder, with_end(ends[0]), options + Words{folder / "softmax.onnx"});
  EXPECT_EQ(run.weights, plain.weights);
  expect_same_rows(run.steps, plain.steps, {"loss"});
  scores.nodes[1] = node("Add", {"products", "b"}, {"p"}, "add");
  scores.outputs = {declared("p", {-1, 3})};
  folder.write("scores.onnx", scores.bytes());
  const Words train = fsdp_run({folder.model(), "--steps", "1"}) + options;
  expect_refused(folder, train + Words{folder / "scores.onnx"},
                 {"--teacher", "output 'p'", "in Softmax 'end', found scores"});
  folder.write("model.onnx", scores.bytes());
  expect_refused(folder, train + Words{folder / "softmax.onnx"},
                 {"--teacher", "output 'p'", "in scores, found Softmax 'end'"});
}

}  // namespace one_loss_test
}  // namespace ofsdp
