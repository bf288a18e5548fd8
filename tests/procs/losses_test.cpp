// Several losses and a teacher in runs of the real program, against plain loops in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "importer/file/onnx_file.h"
#include "tests/support/device_runs.h"
#include "tests/support/loss_rows.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace losses_test {

using namespace onnx_bytes;  // NOLINT: the words of this test
using namespace loss_rows;   // NOLINT: of this test as well
using nlohmann::json;
using testing_data::npy;

constexpr double kShare = 0.3, kTemperature = 3;

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

// The two heads, trained by plain loops.
class TwoHeads {
 public:
  struct Losses {
    double logits = 0, value = 0, divergence = 0;
  };

  // `share`: the teacher's share in the loss of the logits.
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

// An evaluation does not ask the teacher, so the data need no column for it.
TEST(Teacher, AnEvaluationLacksItsColumns) {
  const LossRuns folder;
  SmallModel teacher = linear_model();
  teacher.initializers[0] = tensor("w", kFloat, {4, 3}, raw(teacher_weights()));
  teacher.nodes[0] = node("MatMul", {"image", "w"}, {"products"}, "multiply");
  teacher.inputs = {declared("image", {-1, 4})};
  folder.write("teacher.onnx", teacher.bytes());
  folder.write("data/image.npy", linear_inputs());
  const auto losses = [&](const Words& more) {
    std::vector<double> found;
    for (const json& row :
         folder.rows(folder.distilled() + Words{"--steps", "4", "--eval-interval", "1step"} + more,
                     "eval")) {
      found.push_back(row.at("loss"));
    }
    return found;
  };
  const Words apart{"--eval-data", folder / "eval"};
  for (const Words& more : {Words{}, Words{"--nproc-per-node", "2"}}) {
    std::filesystem::remove(folder / "eval/image.npy");
    const std::vector<double> without = losses(apart + more);
    EXPECT_EQ(without.size(), 4u);
    EXPECT_EQ(losses(Words{"--eval-data", folder / "data"} + more), without);
    folder.write("eval/image.npy", linear_inputs());
    EXPECT_EQ(losses(apart + more), without);
  }
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

// Without an evaluation the run computes the losses to compare with the written file.
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

// A prediction that differs from the loss's operand, and the loss that fits.
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

}  // namespace losses_test
}  // namespace ofsdp
