// Data that do not divide: shards of unequal length, a last batch that leaves ranks with fewer
// samples or none, labels that do not count. No rank waits for ever, and loss and weights equal one
// rank's that takes each global batch in one forward.
#include <algorithm>
#include <cmath>

#include "importer/file/onnx_file.h"
#include "tests/support/checkpoint_runs.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"
#include "tests/support/small_model.h"

namespace ofsdp {
namespace uneven_data_test {

using testing_data::npy;

constexpr int64_t kFeatures = 20;

// logits [batch, 3] = the mean of x [batch, length] times w, for any length.
class AnyLength : public ModelFolder {
 public:
  AnyLength() {
    using namespace onnx_bytes;  // NOLINT: the words of this model
    const std::string shape = message(1, message(2, "batch")) + message(1, message(2, "length"));
    SmallModel model = linear_model();
    model.nodes = {node("ReduceMean", {"x", "last"}, {"mean"}, "mean"),
                   node("MatMul", {"mean", "w"}, {"logits"}, "last")};
    model.initializers = {tensor("w", kFloat, {1, 3}, raw<float>({1, 0, -1})),
                          tensor("last", kInt64, {1}, raw<int64_t>({1}))};
    model.inputs = {message(1, "x") +
                    message(2, message(1, number(1, kFloat) + message(2, shape)))};
    write("model.onnx", model.bytes());
    write("data/x.npy", npy("<f4", "(6, 5)", values(30)));
    write("data/labels.npy", npy("<i8", "(6,)", std::vector<int64_t>{0, 1, 2, 0, 1, 2}));
    for (const auto& [name, lengths] :
         {std::pair("train", std::pair(2, 6)), {"part", {1, 4}}, {"longer", {3, 7}}}) {
      std::string lines;
      for (int i = 0; i < 6; ++i) {
        std::string list;
        const int length = i % 2 == 0 ? lengths.first : lengths.second;
        for (int k = 0; k < length; ++k) list += (k > 0 ? "," : "") + std::to_string(i * k % 5);
        lines += "{\"x\": [" + list + "], \"labels\": " + std::to_string(i % 3) + "}\n";
      }
      write(std::string(name) + ".jsonl", lines);
    }
  }
  static std::vector<float> values(size_t count) {
    std::vector<float> made;
    for (size_t i = 0; i < count; ++i) made.push_back(std::sin(static_cast<float>(i) * 3));
    return made;
  }
  std::string data(const std::string& eval) const {
    const auto part = [](const std::string& name, const std::string& file) {
      return name + ":\n  x: {file: " + file + ".jsonl, field: x, pad_to: longest}\n" +
             "  labels: {file: " + file + ".jsonl, field: labels}\n";
    };
    write(eval + ".yaml", part("train", "train") + part("eval", eval));
    return *this / (eval + ".yaml");
  }
  Words run(const Words& more) const {
    return fsdp_run({model(), "--loss", "cross_entropy", "--batch-size", "2", "--steps", "3",
                     "--lr", "0"}) +
           more;
  }
};

// One graph evaluates and trains: it must not read evaluation rows with the training rows' length.
TEST(RowsOfAnyLength, EvaluationRowsOfAnotherLengthAreRefused) {
  const AnyLength folder;
  for (const char* length : {"9", "4", "1"}) {
    folder.write("eval/x.npy", npy("<f4", std::string("(6, ") + length + ")",
                                   AnyLength::values(6 * std::stoul(length))));
    folder.write("eval/labels.npy", npy("<i8", "(6,)", std::vector<int64_t>{0, 1, 2, 0, 1, 2}));
    expect_refused(folder, folder.run({"--data", folder / "data", "--eval-data", folder / "eval"}),
                   {"column 'x'", "expected rows of [5]", std::string("[") + length + "]"});
  }
}

// Both parts are padded to the longest training row.
TEST(RowsOfAnyLength, PaddedRowsOfBothPartsAreAsLong) {
  const AnyLength folder;
  const std::string data = folder.data("part"), metrics = folder / "m.jsonl";
  const Finished run = Program::run(folder.run({"--data", data, "--metrics", metrics}));
  ASSERT_EQ(run.status, 0) << run.err;
  folder.write("whole.yaml",
               "eval:\n  x: {file: part.jsonl, field: x, pad_to: 6}\n"
               "  labels: {file: part.jsonl, field: labels}\n");
  const Finished eval = Program::run(
      fsdp_run({"eval", folder.model(), "--loss", "cross_entropy", "--batch-size", "2",
                "--eval-data", folder / "whole.yaml", "--metrics", folder / "e.jsonl"}));
  ASSERT_EQ(eval.status, 0) << eval.err;
  EXPECT_NEAR(rows_of(metrics, "eval").at(0).at("loss"),
              rows_of(folder / "e.jsonl", "eval").at(0).at("loss").get<double>(), 1e-6);
  expect_refused(folder, folder.run({"--data", folder.data("longer")}),
                 {"longer.jsonl", "at most the 6 entries"});
}

// `samples` samples for the perceptron; labels at `ignored` do not count.
void write_data(const testing_data::TempFolder& folder, int64_t samples,
                const std::vector<int64_t>& ignored) {
  std::vector<float> x;
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < samples; ++i) {
    for (int64_t j = 0; j < kFeatures; ++j) {
      x.push_back(std::sin(static_cast<float>(i * 7 + j * 3)));
    }
    labels.push_back(std::ranges::count(ignored, i) > 0 ? -100 : i % 3);
  }
  folder.write("x.npy", npy("<f4", format_text("({}, {})", samples, kFeatures), x));
  folder.write("labels.npy", npy("<i8", format_text("({},)", samples), labels));
}

struct Trained {
  std::vector<std::pair<int64_t, double>> losses;
  std::vector<float> weights;
};

Trained trained(const CheckpointRuns& runs, const Words& words) {
  runs.trained(words + Words{"--metrics", runs / "metrics.jsonl"});
  Trained found{losses_by_step(runs / "metrics.jsonl"), {}};
  const auto file = OnnxFile::open(runs / "trained.onnx");
  for (const Initializer& weight : file->initializers()) {
    std::vector<float> values(static_cast<size_t>(weight.shape.numel()));
    EXPECT_TRUE(file->read(weight, 0, values).ok());
    found.weights.insert(found.weights.end(), values.begin(), values.end());
  }
  return found;
}

void expect_near(const Trained& found, const Trained& expected) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t i = 0; i < found.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i].second, expected.losses[i].second, 2e-6) << "step " << i + 1;
  }
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (size_t i = 0; i < found.weights.size(); ++i) {
    ASSERT_NEAR(found.weights[i], expected.weights[i], 2e-6) << "weight " << i;
  }
}

struct Uneven {
  int64_t samples;
  int ranks;
  int batch, accum;
  std::vector<int64_t> ignored = {};
};

class UnevenDataTest : public testing::TestWithParam<Uneven> {};

INSTANTIATE_TEST_SUITE_P(Shares, UnevenDataTest,
                         testing::Values(Uneven{10, 3, 2, 2},                // 4, 3 and 3 samples
                                         Uneven{10, 3, 1, 2},                // then 2, 1 and 1
                                         Uneven{7, 3, 2, 1},                 // then 1, 0 and 0
                                         Uneven{2, 3, 2, 2},                 // 1, 1 and never one
                                         Uneven{10, 3, 2, 2, {0, 3, 6, 9}},  // rank 0 has no label
                                         Uneven{10, 4, 1, 2, {2, 4, 5, 8}}));

TEST_P(UnevenDataTest, LossAndWeightsAreThoseOfOneRank) {
  const Uneven& u = GetParam();
  const CheckpointRuns runs;
  const testing_data::TempFolder data;
  write_data(data, u.samples, u.ignored);
  const Words train = fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--data",
                                data.path(), "--optimizer", "sgd", "--lr", "0.1", "--momentum",
                                "0.9", "--epochs", "3", "--min-params", "1000"});
  const int global = u.ranks * u.batch * u.accum;
  const Trained alone = trained(runs, train + Words{"--batch-size", std::to_string(global)});
  const int64_t updates = (u.samples + global - 1) / global;
  EXPECT_EQ(alone.losses.size(), static_cast<size_t>(3 * updates));
  const Words shares = {"--batch-size", std::to_string(u.batch), "--grad-accum",
                        std::to_string(u.accum)};
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard", "zero1"}) {
    SCOPED_TRACE(strategy);
    expect_near(trained(runs, train + shares + ranks(u.ranks) + Words{"--strategy", strategy}),
                alone);
  }
}

// One sample a forward, so that the scores have the same bits on any number of ranks.
TEST(Metrics, AreThoseOfOneRank) {
  const CheckpointRuns runs;
  const testing_data::TempFolder data;
  write_data(data, 10, {0, 3, 6, 9});
  const auto row_of = [&](int count) {
    const Finished run = Program::run(
        fsdp_run({"eval", fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--data",
                  data.path(), "--eval-data", data.path(), "--batch-size", "1", "--eval-metrics",
                  "accuracy,top2,f1,perplexity", "--metrics", runs / "eval.jsonl"}) +
        ranks(count));
    EXPECT_EQ(run.status, 0) << run.err;
    return rows_of(runs / "eval.jsonl", "eval").at(0);
  };
  const auto alone = row_of(1);
  for (const int count : {2, 3, 4}) {
    const auto row = row_of(count);
    for (const char* name : {"accuracy", "top2", "f1", "perplexity"}) {
      EXPECT_NEAR(row[name].get<double>(), alone[name].get<double>(), 1e-12) << name;
    }
  }
}

}  // namespace uneven_data_test
}  // namespace ofsdp
