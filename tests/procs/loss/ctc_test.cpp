// --loss ctc with the metrics in runs of the real program, against counts by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/device_runs.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace ctc_test {

using namespace onnx_bytes;  // NOLINT: the words of this test
using nlohmann::json;
using testing_data::npy;

// The end of TimeSteps: scores, with the batch on the first or the second axis, or a Softmax over
// rows in one axis, as before opset 13.
enum class Last { kBatchFirst, kTimeFirst, kFlatSoftmax };

// logits = x w + b for five time steps. All weights are 0, so each class has a third of the
// probability.
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

}  // namespace ctc_test
}  // namespace ofsdp
