// Runs of the real program on files with shapes that fit two layouts, against plain loops in
// double: as many samples as time steps, as layers, as channels and taps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "importer/file/onnx_file.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace layouts_test {

using namespace onnx_bytes;  // NOLINT: the words of this test
using testing_data::npy;

constexpr size_t kSamples = 6, kTimes = 6, kWidth = 2, kClasses = 4;
constexpr int64_t kIgnored = -100;

// Axes as numbers or symbols.
std::string declared_as(const std::string& name, const std::vector<std::string>& axes) {
  std::string shape;
  for (const std::string& axis : axes) {
    const bool is_number = std::isdigit(static_cast<unsigned char>(axis[0])) != 0;
    shape += message(1, is_number ? number(1, std::stoull(axis)) : message(2, axis));
  }
  return message(1, name) + message(2, message(1, number(1, kFloat) + message(2, shape)));
}

std::string ints(const std::string& name, const std::vector<int64_t>& values) {
  std::string body = message(1, name) + number(20, 7);
  for (const int64_t value : values) body += number(8, static_cast<uint64_t>(value));
  return message(5, body);
}

float value_at(size_t i) { return static_cast<float>((i * 37) % 23) / 16 - 0.6f; }
std::vector<float> values(size_t count) {
  std::vector<float> made(count);
  for (size_t i = 0; i < count; ++i) made[i] = value_at(i);
  return made;
}

std::vector<double> weights_of(const std::string& path, const std::string& name) {
  const auto file = OnnxFile::open(path);
  EXPECT_TRUE(file.ok());
  for (const auto& w : file->initializers()) {
    if (w.name != name) continue;
    std::vector<float> read(static_cast<size_t>(w.shape.numel()));
    EXPECT_TRUE(file->read(w, 0, read).ok());
    return {read.begin(), read.end()};
  }
  return {};
}

struct Trained {
  double loss = 0;
  std::vector<double> weights;
};

class Run : public ModelFolder {
 public:
  Trained train(const Words& words, const std::string& weight = "w") const {
    const std::string metrics = *this / "metrics.jsonl";
    const Finished run = Program::run(
        fsdp_run({model(), "--optimizer", "sgd", "--lr", "1", "--no-shuffle", "--steps", "1",
                  "--threads", "1", "--metrics", metrics, "--output", output()}) +
        words);
    EXPECT_EQ(run.status, 0) << run.err;
    if (run.status != 0) return {};
    return {losses_of(metrics).at(0), weights_of(output(), weight)};
  }
};

int64_t label_at(size_t n, size_t t) {
  return (n * 5 + t * 3) % 4 == 1 ? kIgnored : static_cast<int64_t>((n * 3 + t) % kClasses);
}

// logits [time, batch, classes] = x [batch, time, width] transposed, times w.
class TimeFirst : public Run {
 public:
  explicit TimeFirst(bool merged = false,
                     const std::vector<std::string>& axes = {"batch", "time", "2"}) {
    SmallModel model;
    model.nodes = {node("Transpose", {"x"}, {"t"}, "turn") + ints("perm", {1, 0, 2}),
                   node("MatMul", {"t", "w"}, {merged ? "scores" : "logits"}, "multiply")};
    if (merged) model.nodes.push_back(node("Reshape", {"scores", "rows"}, {"logits"}, "merge"));
    model.initializers = {tensor("w", kFloat, {kWidth, kClasses}, raw(weights()))};
    if (merged) model.initializers.push_back(tensor("rows", kInt64, {2}, raw<int64_t>({-1, 4})));
    model.inputs = {declared_as("x", axes)};
    model.outputs = {merged ? declared_as("logits", {"rows", "4"})
                            : declared_as("logits", {"a", "b", "4"})};
    write("model.onnx", model.bytes());
    std::vector<int64_t> labels;
    for (size_t i = 0; i < kSamples * kTimes; ++i) labels.push_back(label_at(i / 6, i % 6));
    for (const char* folder : {"data/", "eval/"}) {
      write(std::string(folder) + "x.npy", npy("<f4", "(6, 6, 2)", values(72)));
      write(std::string(folder) + "labels.npy", npy("<i8", "(6, 6)", labels));
      write(std::string(folder) + "target.npy", npy("<f4", "(6, 6, 4)", values(144)));
    }
  }

  static std::vector<float> weights() {
    return {0.5f, -0.25f, 0.75f, 0.125f, -0.5f, 1.f, -0.75f, 0.25f};
  }

  // Label smoothing `s`; mean over the kept labels.
  Trained cross_entropy(double s, double* right = nullptr) const {
    return trained([&](const auto& z, size_t n, size_t t, auto& dz) {
      if (label_at(n, t) == kIgnored) return std::pair{0.0, 0.0};
      double sum = 0, loss = 0;
      for (const double v : z) sum += std::exp(v);
      const auto label = static_cast<size_t>(label_at(n, t));
      for (size_t c = 0; c < kClasses; ++c) {
        const double goal = (c == label ? 1 - s : 0) + s / kClasses;
        loss -= goal * (z[c] - std::log(sum));
        dz[c] = std::exp(z[c]) / sum - goal;
      }
      if (right != nullptr) *right += std::ranges::max_element(z) - z.begin() == label_at(n, t);
      return std::pair{loss, 1.0};
    });
  }

  Trained mean_square() const {
    return trained([&](const auto& z, size_t n, size_t t, auto& dz) {
      double loss = 0;
      for (size_t c = 0; c < kClasses; ++c) {
        const double d = z[c] - value_at((n * kTimes + t) * kClasses + c);
        loss += d * d;
        dz[c] = 2 * d;
      }
      return std::pair{loss, double{kClasses}};
    });
  }

 private:
  using Row = std::array<double, kClasses>;

  // One update at rate 1. `one`: a row's loss, and its weight in the mean.
  static Trained trained(const auto& one) {
    const std::vector<float> first = weights();
    std::vector<double> dw(first.size());
    double loss = 0, count = 0;
    for (size_t n = 0; n < kSamples; ++n) {
      for (size_t t = 0; t < kTimes; ++t) {
        Row z{}, dz{};
        const auto x = [&](size_t k) { return double{value_at((n * kTimes + t) * kWidth + k)}; };
        for (size_t k = 0; k < kWidth; ++k) {
          for (size_t c = 0; c < kClasses; ++c) z[c] += x(k) * double{first[k * kClasses + c]};
        }
        const auto [value, counted] = one(z, n, t, dz);
        loss += value;
        count += counted;
        for (size_t k = 0; k < kWidth; ++k) {
          for (size_t c = 0; c < kClasses; ++c) dw[k * kClasses + c] += x(k) * dz[c];
        }
      }
    }
    Trained made{loss / count, {first.begin(), first.end()}};
    for (size_t i = 0; i < dw.size(); ++i) made.weights[i] -= dw[i] / count;
    return made;
  }
};

void expect_same(const Trained& found, const Trained& want) {
  EXPECT_NEAR(found.loss, want.loss, 3e-6 * std::max(1.0, std::abs(want.loss)));
  ASSERT_EQ(found.weights.size(), want.weights.size());
  for (size_t i = 0; i < want.weights.size(); ++i) {
    EXPECT_NEAR(found.weights[i], want.weights[i], 3e-6) << i;
  }
}

const std::vector<Words> kSplits = {
    {"--batch-size", "6"},
    {"--batch-size", "2", "--grad-accum", "3"},
    {"--nproc-per-node", "2", "--batch-size", "3"},
    {"--nproc-per-node", "3", "--batch-size", "1", "--grad-accum", "2", "--strategy", "zero1"}};

TEST(TimeFirstPredictions, LabelsBelongToThemByAxes) {
  for (const bool merged : {false, true}) {
    const TimeFirst folder(merged);
    for (const Words& split : kSplits) {
      SCOPED_TRACE(format_text("{} {}", merged ? "merged" : "whole", joined(split, " ")));
      const Words classes = split + Words{"--loss", "cross_entropy", "--labels", "labels"};
      expect_same(folder.train(classes), folder.cross_entropy(0));
      expect_same(folder.train(classes + Words{"--label-smoothing", "0.2"}),
                  folder.cross_entropy(0.2));
      expect_same(folder.train(split + Words{"--loss", "mse", "--labels", "target"}),
                  folder.mean_square());
    }
  }
}

TEST(TimeFirstPredictions, AFileMayFixTheSizes) {
  const TimeFirst folder(/*merged=*/false, {"6", "6", "2"});
  expect_same(folder.train({"--loss", "cross_entropy", "--labels", "labels"}),
              folder.cross_entropy(0));
}

TEST(TimeFirstPredictions, AccuracyAndMetricsPairThemSo) {
  const TimeFirst folder;
  double right = 0, kept = 0;
  folder.cross_entropy(0, &right);
  for (size_t i = 0; i < 36; ++i) kept += label_at(i / 6, i % 6) != kIgnored;
  for (const int count : {1, 2}) {
    const std::string metrics = folder / "metrics.jsonl";
    const Finished run = Program::run(
        fsdp_run({"eval", folder.model(), "--loss", "cross_entropy", "--labels", "labels",
                  "--eval-data", folder / "eval", "--batch-size", "3", "--metrics", metrics,
                  "--eval-metrics", "accuracy,top1,perplexity"}) +
        ranks(count));
    ASSERT_EQ(run.status, 0) << run.err;
    const auto row = rows_of(metrics, "eval").at(0);
    EXPECT_NEAR(row.at("accuracy"), right / kept, 1e-6);
    EXPECT_NEAR(row.at("top1"), right / kept, 1e-6);
    EXPECT_NEAR(row.at("perplexity"), std::exp(folder.cross_entropy(0).loss), 1e-4);
  }
}

TEST(TimeFirstPredictions, LabelsOnOtherAxesAreRefused) {
  const TimeFirst folder;
  folder.write("data/target.npy", npy("<f4", "(6, 4, 6)", values(144)));
  expect_refused(folder,
                 fsdp_run({folder.model(), "--loss", "mse", "--labels", "target", "--steps", "1"}),
                 {"'target'", "[6, 4]", "[4, 6]"});
}

// y [batch, 3] = x [batch, 2] w + state [2, batch, 3] at layer 0 and twice at layer 1.
class State : public Run {
 public:
  explicit State(const std::vector<std::string>& axes) {
    SmallModel model;
    model.nodes = {node("MatMul", {"x", "w"}, {"m"}, "multiply"),
                   node("Mul", {"state", "k"}, {"s"}, "scale"),
                   node("ReduceSum", {"s", "axis"}, {"layers"}, "sum") + keep_no_axis(),
                   node("Add", {"m", "layers"}, {"y"}, "add")};
    model.initializers = {tensor("w", kFloat, {2, 3}, raw(values(6))),
                          tensor("k", kFloat, {2, 1, 1}, raw<float>({1.f, 2.f})),
                          tensor("axis", kInt64, {1}, raw<int64_t>({0}))};
    model.inputs = {declared_as("x", {"batch", "2"}), declared_as("state", axes)};
    model.outputs = {declared_as("y", {"batch", "3"})};
    write("model.onnx", model.bytes());
    write("data/x.npy", npy("<f4", "(6, 2)", values(12)));
    write("data/state.npy", npy("<f4", "(6, 2, 3)", values(36)));
    write("data/labels.npy", npy("<f4", "(6, 3)", std::vector<float>(18)));
  }

  static Trained reference() {
    Trained made;
    for (const float v : values(6)) made.weights.push_back(double{v});
    const std::vector<double> w = made.weights;
    for (size_t n = 0; n < 6; ++n) {
      for (size_t o = 0; o < 3; ++o) {
        const auto state = [&](size_t layer) { return double{value_at((n * 2 + layer) * 3 + o)}; };
        const auto x = [&](size_t i) { return double{value_at(n * 2 + i)}; };
        const double y = x(0) * w[o] + x(1) * w[3 + o] + state(0) + 2 * state(1);
        made.loss += y * y / 18;
        for (size_t i = 0; i < 2; ++i) made.weights[i * 3 + o] -= 2 * y * x(i) / 18;
      }
    }
    return made;
  }

 private:
  static std::string keep_no_axis() {
    return message(5, message(1, "keepdims") + number(20, 2) + number(3, 0));
  }
};

TEST(States, HaveTheirSamplesOnTheAxisThatTheFileNames) {
  const State folder({"2", "batch", "3"});
  const Words words{"--loss", "mse", "--freeze", "k"};
  for (const Words& split :
       {Words{"--batch-size", "2", "--grad-accum", "3"},
        Words{"--nproc-per-node", "3", "--batch-size", "2"}, Words{"--batch-size", "6"}}) {
    SCOPED_TRACE(joined(split, " "));
    expect_same(folder.train(words + split), State::reference());
  }
}

TEST(States, AFlagDecidesWhereTheFileDoesNot) {
  const State folder({"2", "n", "3"});
  const Words words{"--loss", "mse", "--freeze", "k", "--batch-size", "2", "--grad-accum", "3"};
  const Words run = fsdp_run({folder.model(), "--steps", "1"}) + words;
  expect_refused(folder, run, {"input 'state' [2, n, 3]", "--batch-axis state=AXIS"});
  expect_refused(folder, run + Words{"--batch-axis", "stat=1"}, {"--batch-axis stat=1", "state"});
  expect_refused(folder, run + Words{"--batch-axis", "state"}, {"--batch-axis", "NAME=AXIS"});
  expect_same(folder.train(words + Words{"--batch-axis", "state=1"}), State::reference());
}

// logits [nodes, 3] = x [nodes, 4] w + b, for graphs with two nodes: linear_model() on nodes.
class GraphsOfNodes : public Run {
 public:
  explicit GraphsOfNodes(const std::string& symbol = "nodes") {
    SmallModel model = linear_model();
    model.inputs = {declared_as("x", {symbol, "4"})};
    model.outputs = {declared_as("logits", {symbol, "3"})};
    write("model.onnx", model.bytes());
    std::vector<float> x(kGraphs * 2 * 4);
    for (size_t i = 0; i < x.size(); ++i) x[i] = value_at(i);
    std::vector<int64_t> labels(kGraphs * 2);
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int64_t>(i * i % 3);
    write("graphs/x.npy", npy("<f4", "(6, 2, 4)", x));
    write("graphs/labels.npy", npy("<i8", "(6, 2)", labels));
    write("data/x.npy", npy("<f4", "(12, 4)", x));
    write("data/labels.npy", npy("<i8", "(12,)", labels));
  }

  static constexpr size_t kGraphs = 6;
};

TEST(FilesWithoutABatchAxis, EachSampleIsABatch) {
  const GraphsOfNodes folder;
  const Words loss{"--loss", "cross_entropy"};
  const Trained plain = folder.train(loss + Words{"--data", folder / "data", "--batch-size", "12"});
  for (const Words& split :
       {Words{"--grad-accum", "6"}, Words{"--nproc-per-node", "3", "--grad-accum", "2"},
        Words{"--nproc-per-node", "2", "--global-batch-size", "6"}}) {
    SCOPED_TRACE(joined(split, " "));
    expect_same(folder.train(loss + Words{"--data", folder / "graphs"} + split), plain);
  }
  const auto predicted = [&](const std::string& data) {
    const std::string file = folder / (data + ".npy");
    const Finished run = Program::run(
        {OFSDP_FSDP_RUN, "predict", folder.model(), "--data", folder / data, "-o", file});
    EXPECT_EQ(run.status, 0) << run.err;
    return content(file);
  };
  const std::string rows = predicted("data"), graphs = predicted("graphs");
  EXPECT_NE(graphs.find("(6, 2, 3)"), std::string::npos);
  EXPECT_EQ(rows.substr(rows.size() - 36 * 4), graphs.substr(graphs.size() - 36 * 4));
}

// Graphs with 3, 1, 2, 4, 1 and 1 nodes, cut out of all nodes: the same update as with nodes.
TEST(FilesWithoutABatchAxis, OffsetsCutGraphs) {
  const GraphsOfNodes folder;
  folder.write("at.npy", npy<int64_t>("<i8", "(7,)", {0, 3, 4, 6, 10, 11, 12}));
  folder.write(
      "graphs.yaml",
      "train:\n"
      "  x: {file: data/x.npy, offsets: at.npy, pad_to: longest}\n"
      "  labels: {file: data/labels.npy, offsets: at.npy, pad_to: longest, pad_value: -100}\n");
  const Words loss{"--loss", "cross_entropy", "--ignore-index", "-100"};
  const Trained plain = folder.train(loss + Words{"--data", folder / "data", "--batch-size", "12"});
  for (const Words& split :
       {Words{"--grad-accum", "6"}, Words{"--nproc-per-node", "3", "--grad-accum", "2"}}) {
    SCOPED_TRACE(joined(split, " "));
    expect_same(folder.train(loss + Words{"--data", folder / "graphs.yaml"} + split), plain);
  }
  expect_refused(folder,
                 fsdp_run({folder.model(), "--data", folder / "graphs.yaml", "--steps", "1",
                           "--output", folder / "at.npy"}) +
                     loss,
                 {"at.npy"});
}

TEST(FilesWithoutABatchAxis, ASymbolOfABatchNeedsTheFlag) {
  const GraphsOfNodes folder("batch");
  const Words words{"--loss", "cross_entropy", "--data", folder / "graphs", "--grad-accum", "6"};
  expect_refused(folder, fsdp_run({folder.model(), "--steps", "1"}) + words,
                 {"input 'x' has 2 axes, its column gives 3"});
  const GraphsOfNodes nodes;
  const Words none{"--batch-axis", "x=none"};
  expect_same(folder.train(words + none), nodes.train({"--loss", "cross_entropy", "--data",
                                                       nodes / "graphs", "--grad-accum", "6"}));
  expect_refused(folder,
                 fsdp_run({folder.model(), "--steps", "1", "--batch-size", "2"}) + words + none,
                 {"--batch-size 2", "fixed at 1"});
}

using OneStep = Run;  // in a test, Run has another meaning

// logits [batch, 3] = Reshape(x [batch, 4] w, [batch, 3]) + b.
SmallModel model_of_a_fixed_batch(int64_t batch = 1) {
  SmallModel model = linear_model();
  model.nodes = {node("MatMul", {"x", "w"}, {"products"}, "multiply"),
                 node("Reshape", {"products", "one_by_3"}, {"rows"}, "shape"),
                 node("Add", {"rows", "b"}, {"logits"}, "add")};
  model.initializers.push_back(tensor("one_by_3", kInt64, {2}, raw<int64_t>({batch, 3})));
  model.inputs = {declared("x", {batch, 4})};
  model.outputs = {declared("logits", {batch, 3})};
  return model;
}

class FixedBatch : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, FixedBatch, testing::Values(1, 3, 5));

TEST_P(FixedBatch, IsTakenForAny) {
  const OneStep folder, open;
  folder.write("model.onnx", model_of_a_fixed_batch(GetParam()).bytes());
  const Words words{"--loss", "cross_entropy", "--batch-size", "4"};
  expect_refused(folder,
                 fsdp_run({folder.model(), "--data", folder / "data", "--steps", "1"}) + words,
                 {"--batch-size 4", format_text("fixed at {}", GetParam())});
  const Words with_data{"--data", folder / "data"};
  expect_same(folder.train(words + with_data + Words{"--free-batch", "on"}),
              open.train(words + with_data));
  const auto predicted = [&](const OneStep& of, const Words& more) {
    const std::string file = of / "y.npy";
    const Finished run = Program::run(
        Words{OFSDP_FSDP_RUN, "predict", of.model(), "--data", folder / "data", "-o", file} + more);
    EXPECT_EQ(run.status, 0) << run.err;
    return content(file);
  };
  EXPECT_EQ(predicted(folder, {"--free-batch", "on"}), predicted(open, {}));
}

TEST(FreeBatch, RefusesAFileThatMixesSamples) {
  const OneStep folder;
  const auto refused = [&](const SmallModel& model, const Words& facts) {
    folder.write("model.onnx", model.bytes());
    expect_refused(folder,
                   fsdp_run({folder.model(), "--data", folder / "data", "--steps", "1", "--loss",
                             "cross_entropy", "--batch-size", "4", "--free-batch", "on"}),
                   facts);
  };
  SmallModel model;
  for (const auto& [batch, count] : {std::pair{1, "two"}, std::pair{3, "3"}}) {
    model = model_of_a_fixed_batch(batch);
    model.nodes.insert(model.nodes.begin(),
                       node("ReduceMax", {"x", "zero"}, {"most"}, "over_samples"));
    model.nodes[1] = node("MatMul", {"less", "w"}, {"products"}, "multiply");
    model.nodes.insert(model.nodes.begin() + 1, node("Sub", {"x", "most"}, {"less"}, "less"));
    model.initializers.push_back(tensor("zero", kInt64, {1}, raw<int64_t>({0})));
    refused(model, {"--free-batch", folder.model(), "output 'logits'",
                    format_text("{} samples together", count), "'over_samples'"});
  }
  model = model_of_a_fixed_batch();
  model.inputs = {declared("x", {-1, 4})};
  refused(model, {"--free-batch", "one fixed batch", "'x' [batch, 4]"});
}

TEST(SampleShapes, GiveSyntheticDataTheirSizes) {
  const OneStep folder;
  SmallModel model = linear_model();
  model.inputs = {declared_as("x", {"batch", "width"})};
  folder.write("model.onnx", model.bytes());
  const Words words =
      fsdp_run({folder.model(), "--data", "synthetic", "--steps", "1", "--loss", "cross_entropy"});
  expect_refused(folder, words, {"axis 1 of input 'x'", "'width'", "--sample-shape x=AxB"});
  expect_refused(folder, words + Words{"--sample-shape", "x=4x1"},
                 {"--sample-shape x", "1 axes", "[4, 1]"});
  expect_refused(folder, words + Words{"--sample-shape", "x=four"}, {"--sample-shape", "NAME=AxB"});
  const Finished run = Program::run(words + Words{"--sample-shape", "x=4"});
  EXPECT_EQ(run.status, 0) << run.err;
}

// c = NhwcConv(x [batch, 3, 3, 3], w [3, 2, 2, 3] or [3, 3, 2, 2]), y = NhwcConv(c, v), a sum.
class Nhwc : public Run {
 public:
  explicit Nhwc(bool second = false) {
    SmallModel model;
    model.domains = {"com.microsoft"};
    model.nodes = {convolution({"x", "w"}, second ? "c" : "y")};
    model.initializers = {tensor("w", kFloat, {4, 3, 3, 3}, raw(values(108)))};
    if (second) {
      model.nodes.push_back(convolution({"c", "v"}, "y"));
      model.initializers.push_back(tensor("v", kFloat, {1, 1, 1, 4}, raw(values(4))));
    }
    model.inputs = {declared_as("x", {"batch", "4", "4", "3"})};
    model.outputs = {declared_as("y", {"batch", "2", "2", second ? "1" : "4"})};
    write("model.onnx", model.bytes());
    write("data/x.npy", npy("<f4", "(2, 4, 4, 3)", values(96)));
    write("data/labels.npy", npy("<f4", second ? "(2, 2, 2, 1)" : "(2, 2, 2, 4)",
                                 std::vector<float>(second ? 8 : 32)));
  }

  // The mean of y^2 and w after an update; `last`: w is [M, kH, kW, C].
  static Trained reference(bool last) {
    Trained made;
    for (const float v : values(108)) made.weights.push_back(double{v});
    const std::vector<double> w = made.weights;
    const auto place = [&](size_t m, size_t i, size_t j, size_t c) {
      return last ? ((m * 3 + i) * 3 + j) * 3 + c : ((m * 3 + c) * 3 + i) * 3 + j;
    };
    const auto each = [&](size_t n, size_t h, size_t v, size_t m, const auto& f) {
      for (size_t k = 0; k < 27; ++k) {
        const size_t i = k / 9, j = k / 3 % 3, c = k % 3;
        f(double{value_at(((n * 4 + h + i) * 4 + v + j) * 3 + c)}, place(m, i, j, c));
      }
    };
    for (size_t at = 0; at < 32; ++at) {
      const size_t n = at / 16, h = at / 8 % 2, v = at / 4 % 2, m = at % 4;
      double y = 0;
      each(n, h, v, m, [&](double x, size_t p) { y += x * w[p]; });
      made.loss += y * y / 32;
      each(n, h, v, m, [&](double x, size_t p) { made.weights[p] -= 2 * y * x / 32; });
    }
    return made;
  }

 private:
  static std::string convolution(const std::vector<std::string>& inputs, const std::string& y) {
    return node("NhwcConv", inputs, {y}, "conv_" + y, "com.microsoft");
  }
};

TEST(NhwcConvolutions, WeightsAreChannelsLastOrAsTheFlagSays) {
  const Nhwc folder;
  const Words words{"--loss", "mse", "--batch-size", "2"};
  expect_same(folder.train(words), Nhwc::reference(true));
  expect_same(folder.train(words + Words{"--nhwc-weights", "last"}), Nhwc::reference(true));
  expect_same(folder.train(words + Words{"--nhwc-weights", "first"}), Nhwc::reference(false));
  const Words run = fsdp_run({folder.model(), "--steps", "1"}) + words;
  const auto says = [&](const Words& more) {
    return Program::run(run + more).out.find("--nhwc-weights first") != std::string::npos;
  };
  EXPECT_TRUE(says({}));
  EXPECT_FALSE(says({"--nhwc-weights", "last"}));
}

TEST(NhwcConvolutions, AnotherNodeOfTheFileDecides) {
  const Nhwc folder(/*second=*/true);
  const Words words{"--loss", "mse", "--batch-size", "2"};
  const Trained found = folder.train(words);
  expect_same(found, folder.train(words + Words{"--nhwc-weights", "last"}));
  expect_refused(folder,
                 fsdp_run({folder.model(), "--steps", "1", "--nhwc-weights", "first"}) + words,
                 {"conv_y"});
}

// logits = (x w) * gain + shift + b, with gain and shift from --input.
SmallModel model_with_inputs() {
  SmallModel model = linear_model();
  model.nodes = {node("MatMul", {"x", "w"}, {"products"}, "multiply"),
                 node("Mul", {"products", "gain"}, {"scaled"}, "scale"),
                 node("Add", {"scaled", "shift"}, {"shifted"}, "shift"),
                 node("Add", {"shifted", "b"}, {"logits"}, "add")};
  model.inputs.push_back(declared("gain", {}));
  model.inputs.push_back(declared("shift", {-1, 3}));
  return model;
}

std::vector<double> losses_with(const ModelFolder& folder, const Words& more) {
  const Words metrics{"--metrics", folder / "metrics.jsonl"};
  const Finished run = Program::run(folder.train() + metrics + more);
  EXPECT_EQ(run.status, 0) << run.err;
  const std::vector<double> losses = losses_of(folder / "metrics.jsonl");
  std::filesystem::remove(folder / "metrics.jsonl");
  std::filesystem::remove(folder.output());
  return losses;
}

TEST(InputValues, AreTheSameInEveryBatch) {
  const ModelFolder folder;
  const std::vector<double> plain = losses_with(folder, {});
  folder.write("model.onnx", model_with_inputs().bytes());
  EXPECT_EQ(losses_with(folder, {"--input", "gain=1", "--input", "shift=zeros"}), plain);
  EXPECT_EQ(losses_with(folder, {"--input", "gain=ones", "--input", "shift=0"}), plain);
  const std::vector<double> twice =
      losses_with(folder, {"--input", "gain=2", "--input", "shift=0.5"});
  EXPECT_NE(twice, plain);
  folder.write("shift.npy", npy("<f4", "(2, 3)", std::vector<float>(6, 0.5f)));
  EXPECT_EQ(losses_with(folder, {"--input", "gain=2", "--input", "shift=" + folder / "shift.npy"}),
            twice);
  // The written file has the inputs.
  ASSERT_EQ(Program::run(folder.train() + Words{"--input", "gain=1", "--input", "shift=0"}).status,
            0);
  const std::string trained = content(folder.output());
  EXPECT_EQ(trained.size(), content(folder.model()).size());
}

TEST(InputValues, ThatDoNotFit) {
  const ModelFolder folder;
  folder.write("model.onnx", model_with_inputs().bytes());
  const Words gain = folder.train() + Words{"--input", "gain=1"};
  expect_refused(folder, gain, {"no column 'shift'"});
  expect_refused(folder, gain + Words{"--input", "shif=1"},
                 {"--input shif", folder.model(), "x, shift", "did you mean 'shift'?"});
  folder.write("shift.npy", npy("<f4", "(2, 4)", std::vector<float>(8)));
  expect_refused(folder, gain + Words{"--input", "shift=" + folder / "shift.npy"},
                 {"--input shift", "found [2, 4]"});
  folder.write("shift.npy", npy("<i8", "(2, 3)", std::vector<int64_t>(6)));
  expect_refused(folder, gain + Words{"--input", "shift=" + folder / "shift.npy"},
                 {"--input shift", "expected float32", "found int64"});
  expect_refused(folder, gain + Words{"--input", "shift=many"}, {"--input", "NAME=VALUE", "many"});
  expect_refused(folder, gain + Words{"--input", "gain=2"}, {"--input", "one value"});
}

}  // namespace layouts_test
}  // namespace ofsdp
