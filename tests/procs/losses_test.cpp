// Several losses and a teacher in runs of the real program, against plain loops in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "importer/file/onnx_file.h"
#include "tests/support/device_runs.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/prediction_ends.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace losses_test {

using namespace onnx_bytes;       // NOLINT: the words of this test
using namespace prediction_ends;  // NOLINT: of this test as well
using nlohmann::json;
using testing_data::npy;

constexpr size_t kRows = 12;
constexpr double kRate = 0.5, kShare = 0.3, kTemperature = 3;

std::vector<float> teacher_weights() {
  std::vector<float> weights = linear_weights();
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = 2 * weights[weights.size() - 1 - i];
  return weights;
}

// A third of the labels is ignored, most of them in the second half.
int64_t label_of(size_t row) {
  return row == 1 || row > 8 ? -100 : static_cast<int64_t>(row * row % 3);
}

float target_of(size_t row) { return static_cast<float>(row % 5) / 4 - 0.25f; }

// logits = x w + b and value = x v.
SmallModel two_heads() {
  SmallModel model = linear_model();
  model.nodes.push_back(node("MatMul", {"x", "v"}, {"value"}, "second"));
  model.initializers.push_back(tensor("v", kFloat, {4, 1}, raw<float>({0.5f, -1.f, 0.25f, 0.75f})));
  model.outputs.push_back(declared("value", {-1, 1}));
  return model;
}

class LossRuns : public ModelFolder {
 public:
  LossRuns() {
    write("model.onnx", two_heads().bytes());
    SmallModel teacher = linear_model();
    teacher.initializers[0] = tensor("w", kFloat, {4, 3}, raw(teacher_weights()));
    write("teacher.onnx", teacher.bytes());
    std::vector<int64_t> labels;
    std::vector<float> targets;
    for (size_t i = 0; i < kRows; ++i) labels.push_back(label_of(i));
    for (size_t i = 0; i < kRows; ++i) targets.push_back(target_of(i));
    for (const char* folder : {"data/", "eval/"}) {
      write(std::string(folder) + "x.npy", linear_inputs());
      write(std::string(folder) + "labels.npy", npy("<i8", "(12,)", labels));
      write(std::string(folder) + "target.npy", npy("<f4", "(12, 1)", targets));
    }
  }

  std::string teacher() const { return *this / "teacher.onnx"; }
  Words run(const Words& losses) const {
    return fsdp_run({model(), "--optimizer", "sgd", "--lr", "0.5", "--global-batch-size", "12",
                     "--no-shuffle", "--epochs", "100", "--threads", "1"}) +
           losses;
  }
  Words two() const {
    return run({"--loss", "cross_entropy:logits:labels", "--loss", "mse:value:target*0.5"});
  }
  Words distilled() const {
    return run({"--loss", "cross_entropy:logits:labels", "--loss", "mse:value:target*0.5",
                "--teacher", teacher(), "--distill-weight", "0.3", "--distill-temperature", "3"});
  }
  std::vector<json> rows(const Words& words, const std::string& kind = "step") const {
    const std::string metrics = *this / "metrics.jsonl";
    const Finished finished = Program::run(words + Words{"--metrics", metrics});
    EXPECT_EQ(finished.status, 0) << finished.err;
    return rows_of(metrics, kind);
  }
  std::string trained(const Words& words) const {
    const Finished finished = Program::run(words + Words{"--output", output()});
    EXPECT_EQ(finished.status, 0) << finished.err;
    return content(output());
  }
};

using Triple = std::array<double, 3>;

double x(size_t row, size_t i) { return static_cast<float>((row * 4 + i) * 7 % 11) / 8 - 0.5; }

Triple softmax(Triple z, double temperature) {
  double sum = 0;
  for (double& v : z) sum += v = std::exp(v / temperature);
  for (double& v : z) v /= sum;
  return z;
}

// The two heads, trained by plain loops.
class TwoHeads {
 public:
  struct Losses {
    double logits = 0, value = 0, divergence = 0;
  };

  // `share`: of the teacher in the loss of the logits.
  Losses step(double share) {
    Losses losses;
    std::array<double, 12> dw{};
    std::array<double, 4> dv{};
    Triple db{};
    for (size_t n = 0; n < kRows; ++n) {
      double value = 0;
      for (size_t i = 0; i < 4; ++i) value += x(n, i) * v_[i];
      const double error = value - static_cast<double>(target_of(n));
      losses.value += error * error / kRows;
      for (size_t i = 0; i < 4; ++i) dv[i] += 0.5 * 2 * error * x(n, i) / kRows;
      if (label_of(n) < 0) continue;
      const Triple z = logits(n, w_, b_),
                   taught = logits(n, std::vector<double>(teacher_.begin(), teacher_.end()),
                                   Triple{0.5, 0, -0.5});
      const Triple q = softmax(z, 1), warm = softmax(z, kTemperature);
      const Triple p = softmax(taught, kTemperature);
      const auto label = static_cast<size_t>(label_of(n));
      losses.logits -= std::log(q[label]) / kKept;
      for (size_t o = 0; o < 3; ++o) {
        losses.divergence += p[o] * std::log(p[o] / warm[o]) / kKept;
        const double plain = q[o] - (o == label ? 1 : 0);
        const double d = ((1 - share) * plain + share * kTemperature * (warm[o] - p[o])) / kKept;
        db[o] += d;
        for (size_t i = 0; i < 4; ++i) dw[i * 3 + o] += x(n, i) * d;
      }
    }
    for (size_t k = 0; k < 12; ++k) w_[k] -= kRate * dw[k];
    for (size_t k = 0; k < 3; ++k) b_[k] -= kRate * db[k];
    for (size_t k = 0; k < 4; ++k) v_[k] -= kRate * dv[k];
    return losses;
  }

 private:
  static constexpr double kKept = 8;

  static Triple logits(size_t row, const std::vector<double>& w, Triple z) {
    for (size_t o = 0; o < 3; ++o) {
      for (size_t i = 0; i < 4; ++i) z[o] += x(row, i) * w[i * 3 + o];
    }
    return z;
  }

  std::vector<float> first_ = linear_weights(), teacher_ = teacher_weights();
  std::vector<double> w_{first_.begin(), first_.end()};
  Triple b_{0.5, 0, -0.5};
  std::array<double, 4> v_{0.5, -1, 0.25, 0.75};
};

TEST(SeveralLosses, EachIsAMeanOfItsOwnOverRanksAndMicroBatches) {
  const LossRuns folder;
  for (const int count : {1, 2, 3}) {
    for (const char* accum : {"1", "2"}) {
      SCOPED_TRACE(format_text("{} ranks, {} micro-batches", count, accum));
      TwoHeads reference;
      const Words words =
          folder.two() + ranks(count) + Words{"--grad-accum", accum, "--steps", "4"};
      const auto rows = folder.rows(words);
      ASSERT_EQ(rows.size(), 4u);
      for (const json& row : rows) {
        const TwoHeads::Losses want = reference.step(0);
        EXPECT_NEAR(row.at("losses").at("logits"), want.logits, 2e-6);
        EXPECT_NEAR(row.at("losses").at("value"), want.value, 2e-6);
        EXPECT_NEAR(row.at("loss"), want.logits + 0.5 * want.value, 2e-6);
      }
    }
  }
}

TEST(SeveralLosses, EvaluationHasThemTooAndMetricsOfEachPrediction) {
  const LossRuns folder;
  TwoHeads reference;
  reference.step(0);
  const TwoHeads::Losses want = reference.step(0);
  const auto rows = folder.rows(folder.two() + ranks(2) +
                                    Words{"--steps", "1", "--eval-data", folder / "eval",
                                          "--eval-metrics", "accuracy,rmse@value"},
                                "eval");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_NEAR(rows[0].at("losses").at("logits"), want.logits, 2e-6);
  EXPECT_NEAR(rows[0].at("loss"), want.logits + 0.5 * want.value, 2e-6);
  EXPECT_NEAR(rows[0].at("rmse@value"), std::sqrt(want.value), 2e-6);
  EXPECT_TRUE(rows[0].at("accuracy").is_number());
}

TEST(SeveralLosses, APredictionNamedTwiceHasANumber) {
  const LossRuns folder;
  const auto rows = folder.rows(
      folder.run({"--loss", "mse:value:target", "--loss", "mse:value:target*2", "--steps", "1"}));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].at("losses").at("value"), rows[0].at("losses").at("value#2"));
  EXPECT_NEAR(rows[0].at("loss"), 3 * rows[0].at("losses").at("value").get<double>(), 1e-6);
}

TEST(SeveralLosses, DevicesGiveTheBitsOfTheCpu) {
  const LossRuns folder;
  for (const Words& more : {Words{}, Words{"--batch-size", "3"}, ranks(2), ranks(3),
                            Words{"--param-dtype", "float16"} + ranks(2)}) {
    SCOPED_TRACE(testing::PrintToString(more));
    const Words run =
        folder.two() +
        Words{"--eval-data",     folder / "eval",
              "--eval-metrics",  "accuracy,top2,f1,perplexity,rmse@value,mae@value,r2@value",
              "--eval-interval", "2step",
              "--steps",         "6"} +
        more;
    expect_bits_of_the_cpu(run);
    expect_near_losses(on_cpu(run), run_on_device(OFSDP_EMULATED_DEVICE, run), 1e-3);
  }
}

TEST(SeveralLosses, ALossThatIsNoNumberIsNamedOnADevice) {
  const LossRuns folder;
  folder.write(
      "data/target.npy",
      npy("<f4", "(12, 1)", std::vector<float>(12, std::numeric_limits<float>::quiet_NaN())));
  const Trained device = on_counting_device(folder.two() + Words{"--steps", "2"});
  EXPECT_EQ(device.run.status, 1);
  EXPECT_THAT(device.run.err, testing::HasSubstr("loss is NaN at step 1, rank 0"));
}

TEST(SeveralLosses, WrongOnesAreRefused) {
  const LossRuns folder;
  const auto refused = [&](const Words& losses, const Words& facts) {
    expect_refused(folder, folder.run(losses + Words{"--steps", "1"}), facts);
  };
  refused({"--loss", "mse:valu:target"}, {"--loss mse:valu:target", "no such output", "value"});
  refused({"--loss", "mse:value:targets"},
          {"--loss mse:value:targets", "no such column", "target"});
  refused({"--loss", "mse:value:target*half"}, {"--loss", "WEIGHT"});
  refused({"--loss", "cross_entropy", "--loss", "mse:value:target"}, {"--loss", "each of several"});
}

TEST(Teacher, ItsDivergenceIsPartOfTheLossOfEachOutput) {
  const LossRuns folder;
  for (const int count : {1, 2, 3}) {
    for (const char* accum : {"1", "2"}) {
      SCOPED_TRACE(format_text("{} ranks, {} micro-batches", count, accum));
      TwoHeads reference;
      const auto rows = folder.rows(folder.distilled() + ranks(count) +
                                    Words{"--grad-accum", accum, "--steps", "4"});
      ASSERT_EQ(rows.size(), 4u);
      for (const json& row : rows) {
        const TwoHeads::Losses want = reference.step(kShare);
        EXPECT_NEAR(row.at("losses").at("logits"), want.logits, 2e-6);
        const double squared = kTemperature * kTemperature;
        EXPECT_NEAR(
            row.at("loss"),
            (1 - kShare) * want.logits + kShare * squared * want.divergence + 0.5 * want.value,
            4e-6);
      }
    }
  }
}

TEST(Teacher, EvaluationHasThePlainLoss) {
  const LossRuns folder;
  TwoHeads reference;
  reference.step(kShare);
  const TwoHeads::Losses want = reference.step(kShare);
  const auto rows = folder.rows(
      folder.distilled() + Words{"--steps", "1", "--eval-data", folder / "eval"}, "eval");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_NEAR(rows[0].at("loss"), want.logits + 0.5 * want.value, 2e-6);
}

TEST(Teacher, StrategiesAndAResumeGiveTheSameBitsInThePlannedMemory) {
  const LossRuns folder;
  const Words words = folder.distilled() + ranks(3) + Words{"--steps", "6", "--min-params", "5"};
  const std::string first = folder.trained(words);
  for (const char* strategy : {"shard_grad_op", "zero1", "no_shard"}) {
    SCOPED_TRACE(strategy);
    EXPECT_EQ(folder.trained(words + Words{"--strategy", strategy}), first);
    const auto end = folder.rows(words + Words{"--strategy", strategy}, "end");
    EXPECT_EQ(end.at(0).at("peak_bytes"), end.at(0).at("planned_peak_bytes"));
  }
  const Words saved =
      words + Words{"--checkpoint-dir", folder / "saved", "--checkpoint-interval", "3step"};
  ASSERT_EQ(Program::run(saved + Words{"--steps", "3"}).status, 0);
  EXPECT_EQ(folder.trained(saved + Words{"--resume", "latest"}), first);
}

TEST(Teacher, DevicesGiveTheBitsOfTheCpu) {
  const LossRuns folder;
  for (const Words& more : {Words{}, Words{"--batch-size", "3"}, ranks(3),
                            Words{"--param-dtype", "bfloat16"} + ranks(2)}) {
    SCOPED_TRACE(testing::PrintToString(more));
    const Words run = folder.distilled() + Words{"--steps", "6"} + more;
    expect_bits_of_the_cpu(run);
    expect_near_losses(on_cpu(run), run_on_device(OFSDP_EMULATED_DEVICE, run), 1e-2);
  }
}

TEST(Teacher, ACheckpointKnowsItsTeacher) {
  const LossRuns folder;
  const Words saved = Words{"--steps", "2", "--checkpoint-dir", folder / "saved"};
  ASSERT_EQ(Program::run(folder.distilled() + saved).status, 0);
  expect_refused(folder, folder.two() + saved + Words{"--resume", folder / "saved/step-00000002"},
                 {"--teacher", "found none"});
}

TEST(Teacher, TheWrittenFileIsTheStudentAlone) {
  const LossRuns folder;
  folder.trained(folder.distilled() + ranks(2) + Words{"--steps", "2"});
  const auto file = OnnxFile::open(folder.output());
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->initializers().size(), 3u);
  EXPECT_EQ(content(folder.output()).size(), content(folder.model()).size());
}

TEST(Teacher, OneThatDoesNotFitIsRefused) {
  const LossRuns folder;
  const auto refused = [&](const SmallModel& teacher, const Words& facts) {
    folder.write("teacher.onnx", teacher.bytes());
    expect_refused(folder, folder.distilled() + Words{"--steps", "1"}, facts);
  };
  SmallModel other = linear_model();
  other.nodes[1] = node("Add", {"products", "b"}, {"scores"}, "add");
  other.outputs = {declared("scores", {-1, 3})};
  refused(other, {"--teacher", "teacher.onnx", "logits", "scores"});
  SmallModel wide = linear_model();
  wide.initializers = {tensor("w", kFloat, {4, 5}, raw(count_up(20))),
                       tensor("b", kFloat, {5}, raw(count_up(5)))};
  wide.outputs = {declared("logits", {-1, 5})};
  refused(wide, {"--teacher", "teacher.onnx", "'logits'", ", 3]", ", 5]"});
  SmallModel blind = linear_model();
  blind.nodes[0] = node("MatMul", {"image", "w"}, {"products"}, "multiply");
  blind.inputs = {declared("image", {-1, 4})};
  refused(blind, {"--teacher", "teacher.onnx", "'image'", "no such column"});
  std::filesystem::remove(folder.teacher());
  expect_refused(folder, folder.distilled() + Words{"--steps", "1"}, {"--teacher", "teacher.onnx"});
}

// linear_model() with an operator after the scores, trained by plain loops.
enum class Head { kScores, kSoftmax, kSigmoid };

class WeightedLosses : public ModelFolder {
 public:
  explicit WeightedLosses(Head head) : head_(head) {
    SmallModel model = linear_model();
    if (head != Head::kScores) {
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
    write("weights.npy", npy("<f8", "(3,)", std::vector<double>{1, 0.5, 4}));
    write("weights.txt", "1, 0.5\n4\n");
  }

  static float bit(size_t i) { return i * i % 5 < 2 ? 1 : 0; }

  // Losses of three updates. `weights`: of classes or of positive labels.
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

  void expect_losses(const Words& options, const Triple& weights, bool of_bits) const {
    for (const int n : {1, 2}) {
      const std::string metrics = *this / "metrics.jsonl";
      const Finished run = Program::run(
          fsdp_run({model(), "--data", *this / (of_bits ? "bits" : "data"), "--optimizer", "sgd",
                    "--lr", "0.5", "--weight-decay", "0", "--global-batch-size", "12", "--steps",
                    "3", "--threads", "1", "--metrics", metrics}) +
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
  classes.expect_losses({"--loss", "nll_probabilities"}, {1, 1, 1}, false);
  bits.expect_losses({"--loss", "bce"}, {1, 1, 1}, true);
}

TEST(WeightedLoss, ClassesHaveWeights) {
  const WeightedLosses folder(Head::kSoftmax);
  for (const std::string& given :
       {std::string("1,0.5,4"), folder / "weights.npy", folder / "weights.txt"}) {
    folder.expect_losses({"--loss", "nll_probabilities", "--class-weights", given}, {1, 0.5, 4},
                         false);
  }
}

TEST(WeightedLoss, PositiveLabelsHaveWeights) {
  const WeightedLosses folder(Head::kScores);
  folder.expect_losses({"--loss", "bce_with_logits", "--pos-weight", "3"}, {3, 3, 3}, true);
  folder.expect_losses({"--loss", "bce_with_logits", "--pos-weight", "1,0.5,4"}, {1, 0.5, 4}, true);
}

// A probability of 0 counts as e^-100, and does not make the gradient NaN.
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

// Without an evaluation the run computes its own side of the comparison with the written file.
TEST(Losses, TheFileAnswersAsTwoLossesDo) {
  const LossRuns folder;
  for (const int n : {1, 2}) {
    const Finished run =
        Program::run(folder.two() + ranks(n) +
                     Words{"--data", folder / "data", "--steps", "2", "--output", folder.output()});
    EXPECT_EQ(run.status, 0);
    EXPECT_EQ(run.err, "");
    EXPECT_THAT(run.out, testing::HasSubstr("answers as the trained weights do"));
  }
}

// A prediction that is something else than the loss reads, and the loss that fits.
TEST(Losses, APredictionOfAnotherKindIsTold) {
  const ModelFolder folder;
  folder.write("data/bits.npy", npy("<f4", "(12, 3)", std::vector<float>(36, 1)));
  const auto err_of = [&](const std::vector<std::string>& nodes, const Words& loss) {
    SmallModel model = linear_model();
    model.nodes.back() = node("Add", {"products", "b"}, {"scores"}, "add");
    std::ranges::copy(nodes, std::back_inserter(model.nodes));
    folder.write("model.onnx", model.bytes());
    Words words = fsdp_run({folder.model(), "--data", folder / "data", "--steps", "1"}) + loss;
    const Finished run = Program::run(words);
    EXPECT_EQ(run.status, 0) << run.err;
    words.insert(words.begin() + 1, "eval");
    words.resize(words.size() - loss.size() - 2);
    EXPECT_EQ(Program::run(words + loss).err, run.err);
    return run.err;
  };
  const std::string plain = node("Identity", {"scores"}, {"logits"}, "end");
  const std::vector<std::string> softmax = {node("Softmax", {"scores"}, {"p"}, "softmax"),
                                            node("Abs", {"p"}, {"logits"}, "end")};
  expect_one_line(err_of(softmax, {"--loss", "cross_entropy"}),
                  {"warning", "'logits'", "0 to 1", "--loss nll_probabilities"});
  EXPECT_EQ(err_of(softmax, {"--loss", "nll_probabilities"}), "");
  expect_one_line(err_of(softmax, {"--loss", "nll"}), {"warning", "--loss nll_probabilities"});
  expect_one_line(err_of({plain}, {"--loss", "nll"}), {"warning", "--loss cross_entropy"});
  expect_one_line(err_of({plain}, {"--loss", "nll_probabilities"}),
                  {"warning", "below 0 or above 1", "--loss cross_entropy"});
  expect_one_line(err_of({plain}, {"--loss", "bce", "--labels", "bits"}),
                  {"warning", "--loss bce_with_logits"});
  EXPECT_EQ(err_of({plain}, {"--loss", "cross_entropy"}), "");
  EXPECT_EQ(err_of({node("LogSoftmax", {"scores"}, {"logits"}, "end")}, {"--loss", "nll"}), "");
}

TEST(Losses, AnEvaluationNeedsNothingToTrain) {
  const ModelFolder folder;
  const Words eval = {"eval", folder.model(), "--data", folder / "data", "--loss", "cross_entropy"};
  const Finished before = Program::run(fsdp_run(eval));
  ASSERT_EQ(before.status, 0) << before.err;
  for (const int n : {1, 2}) {
    const Finished run = Program::run(fsdp_run(eval + Words{"--freeze", "*"}) + ranks(n));
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_EQ(run.out.substr(run.out.find("eval  ")), before.out.substr(before.out.find("eval  ")));
  }
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

// A loss of scores trains each end to the bits of the model without it, with its metrics.
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

// F1 of columns by a plain loop; on three ranks, of scores and of probabilities.
// As scikit-learn's converter writes two classes: the loss is that of the logit.
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

// How TimeSteps ends: its scores, with the batch on the first or the second axis, or a Softmax over
// rows in one axis, as before opset 13.
enum class Last { kBatchFirst, kTimeFirst, kFlatSoftmax };

// logits = x w + b for five time steps. All weights
// are 0, so each class has a third of the probability.
class TimeSteps : public ModelFolder {
 public:
  static constexpr uint64_t kSteps = 5, kSamples = 6;

  explicit TimeSteps(Last last) {
    SmallModel model = linear_model();
    model.initializers = {tensor("w", kFloat, {4, 3}, raw(std::vector<float>(12))),
                          tensor("b", kFloat, {3}, raw(std::vector<float>(3)))};
    model.inputs = {declared("x", {-1, kSteps, 4})};
    model.outputs = {declared("logits", {-1, kSteps, 3})};
    if (last == Last::kTimeFirst) {
      constexpr uint64_t kInts = 7;
      const std::string perm =
          message(1, "perm") + number(20, kInts) + number(8, 1) + number(8, 0) + number(8, 2);
      model.nodes.push_back(node("Transpose", {"logits"}, {"by_time"}, "last") + message(5, perm));
      model.outputs = {declared("by_time", {kSteps, -1, 3})};
    } else if (last == Last::kFlatSoftmax) {
      model.nodes.push_back(node("Reshape", {"logits", "rows"}, {"flat"}, "flatten"));
      model.nodes.push_back(node("Softmax", {"flat"}, {"shares"}, "softmax"));
      model.nodes.push_back(node("Reshape", {"shares", "steps"}, {"p"}, "last"));
      model.initializers.push_back(tensor("rows", kInt64, {2}, raw<int64_t>({-1, 3})));
      model.initializers.push_back(tensor("steps", kInt64, {3}, raw<int64_t>({-1, kSteps, 3})));
      model.outputs = {declared("p", {-1, kSteps, 3})};
    }
    write("model.onnx", model.bytes());
    std::vector<float> values(kSamples * kSteps * 4);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7 % 11) / 8;
    const std::vector<int64_t> labels{1, -100, 2, -100, 1, -100, 1, -100, 2, -100, 2, -100};
    for (const char* folder : {"data/", "data/eval/"}) {
      write(std::string(folder) + "x.npy", npy("<f4", "(6, 5, 4)", values));
      write(std::string(folder) + "labels.npy", npy("<i8", "(6, 2)", labels));
    }
  }

  Words train(int n) const {
    return fsdp_run({model(), "--data", *this / "data", "--loss", "ctc", "--optimizer", "sgd",
                     "--lr", "0.5", "--weight-decay", "0", "--global-batch-size", "6", "--steps",
                     "3", "--eval-metrics", "cer,wer", "--metrics", *this / "metrics.jsonl"}) +
           ranks(n);
  }
};

// 15 of the 243 paths spell one label.
TEST(Ctc, PathsThatSpellTheLabelsCount) {
  std::vector<std::vector<double>> all;
  for (const Last last : {Last::kBatchFirst, Last::kTimeFirst, Last::kFlatSoftmax}) {
    for (const int n : {1, 3}) {
      const TimeSteps folder(last);
      const Finished run = Program::run(folder.train(n));
      ASSERT_EQ(run.status, 0) << run.err;
      all.push_back(losses_of(folder / "metrics.jsonl"));
      ASSERT_EQ(all.back().size(), 3u);
      EXPECT_NEAR(all.back()[0], -std::log(15.0 / 243), 1e-6);
      EXPECT_LT(all.back()[2], all.back()[0]);
      for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(all.back()[i], all[0][i], 2e-6);
    }
  }
}

// The blank is the first of three equal scores, so nothing is decoded before the first update.
TEST(Ctc, EditDistancesAreCounted) {
  const TimeSteps folder(Last::kTimeFirst);
  const Finished run = Program::run(folder.train(2) + Words{"--lr", "0"});
  ASSERT_EQ(run.status, 0) << run.err;
  const json row = rows_of(folder / "metrics.jsonl", "eval").at(0);
  EXPECT_EQ(row.at("cer"), 1);
  EXPECT_EQ(row.at("wer"), 1);
}

TEST(Ctc, DevicesGiveTheBitsOfTheCpu) {
  for (const Last last : {Last::kBatchFirst, Last::kTimeFirst}) {
    for (const int n : {1, 2}) {
      const TimeSteps folder(last);
      const Words run = folder.train(n) + Words{"--eval-metrics", "cer,wer[2]"};
      expect_bits_of_the_cpu(run);
      expect_near_losses(on_cpu(run), run_on_device(OFSDP_EMULATED_DEVICE, run), 1e-5);
    }
  }
}

TEST(Ctc, WrongDataOnADeviceAreToldInTheWordsOfTheCpu) {
  const TimeSteps folder(Last::kBatchFirst);
  folder.write("long/x.npy", content(folder / "data/x.npy"));
  folder.write("long/labels.npy", npy("<i8", "(6, 4)", std::vector<int64_t>(24, 2)));
  const Words train = fsdp_run({folder.model(), "--steps", "1", "--loss", "ctc", "--eval-data",
                                "none", "--data", folder / "long"});
  const Trained run = run_on_device(OFSDP_EMULATED_DEVICE, train);
  EXPECT_EQ(run.run.status, 2);
  EXPECT_THAT(run.run.err, testing::HasSubstr("expected at least 7 time steps for 4 labels"));
}

TEST(Ctc, WrongDataAreRefused) {
  const TimeSteps folder(Last::kBatchFirst);
  folder.write("long/x.npy", content(folder / "data/x.npy"));
  folder.write("long/labels.npy", npy("<i8", "(6, 4)", std::vector<int64_t>(24, 2)));
  const Words train = fsdp_run({folder.model(), "--steps", "1", "--data"});
  expect_refused(folder, train + Words{folder / "long", "--loss", "ctc"},
                 {"sample 0: expected at least 7 time steps for 4 labels", "found 5"});
  expect_refused(folder, train + Words{folder / "data", "--loss", "ctc[2]"},
                 {"label 2 of sample", "the blank 2"});
  expect_refused(folder, train + Words{folder / "data", "--loss", "ctc", "--eval-metrics", "f1"},
                 {"--eval-metrics f1: expected cer or wer with --loss ctc"});
}

}  // namespace losses_test
}  // namespace ofsdp
