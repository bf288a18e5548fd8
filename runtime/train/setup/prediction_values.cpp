#include "runtime/train/setup/prediction_values.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "importer/graph/reference_run.h"
#include "importer/passes/loss.h"
#include "importer/passes/specialize.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/engine/forward.h"
#include "runtime/train/setup/free_batch.h"

namespace ofsdp::runtime {
namespace {

constexpr int64_t kFirstRows = 8;
constexpr double kMostSeconds = 20;  // of the reference's loops; kernels take a twentieth
constexpr double kMostBytes = 512.0 * (1 << 20);
constexpr double kSumTolerance = 1e-3;

struct PredictedValues {
  Shape shape;
  std::vector<double> numbers;

  bool all(const auto& holds) const { return std::ranges::all_of(numbers, holds); }
  bool in_unit() const {
    return all([](double x) { return x >= 0 && x <= 1; });
  }
  // Returns whether f of the numbers along axis 1 sums to 1 everywhere.
  bool sums_to_one(const auto& f) const {
    if (shape.rank() < 2 || shape[1] < 2) return false;
    const int64_t inner = shape.numel(2, shape.rank()), classes = shape[1];
    for (int64_t i = 0; i < shape[0] * inner; ++i) {
      double sum = 0;
      for (int64_t c = 0; c < classes; ++c) {
        sum += f(numbers[static_cast<size_t>((i / inner * classes + c) * inner + i % inner)]);
      }
      if (!(std::abs(sum - 1) <= kSumTolerance)) return false;
    }
    return !numbers.empty();
  }
  bool are_probabilities() const {
    return in_unit() && sums_to_one([](double x) { return x; });
  }
  bool are_logarithms() const {
    return sums_to_one([](double x) { return std::exp(x); });
  }
};

// Returns the node that computes a value, past nodes that only move it.
std::string computed_by(const Graph& graph, ValueId value) {
  const Node* node = maker_of(graph, value);
  while (node != nullptr && (node->op->view || node->op->full_name() == "Identity" ||
                             node->op->full_name() == "Transpose")) {
    node = maker_of(graph, node->inputs[0]);
  }
  return node == nullptr ? "" : node->op->full_name();
}

// Returns whether the prediction may be something else than the loss reads: a Softmax is a
// probability without a look at its numbers, and a Gemm gives scores.
bool is_open(const LossSpec& loss, const std::string& op) {
  static const std::set<std::string> kLinear = {"Gemm", "MatMul", "Add", "Conv", "Mul", "Relu"};
  switch (loss_traits(loss.kind).reads) {
    case PredictionKind::kScores:
      return loss.kind == LossKind::kCrossEntropy && loss.scores.empty() && !kLinear.contains(op);
    case PredictionKind::kLogProbabilities:
      return op != "LogSoftmax";
    case PredictionKind::kProbabilities:
      return op != "Softmax" && op != "Sigmoid";
    default:
      return false;
  }
}

UnfitPrediction judged(const LossSpec& loss, const PredictedValues& values) {
  const std::string name = escaped(loss.prediction);
  const std::string kind(name_of(loss.kind));
  const auto found = [&](const char* what, const char* expected, const char* option) {
    return UnfitPrediction{format_text("the prediction '{}' has {} in the first rows, and {} takes "
                                       "{}",
                                       name, what, kind, expected),
                           option};
  };
  switch (loss_traits(loss.kind).reads) {
    case PredictionKind::kScores:
      if (!values.are_probabilities()) return {};
      return found("numbers of 0 to 1 that sum to 1", "the softmax of scores",
                   "--loss nll_probabilities");
    case PredictionKind::kLogProbabilities:
      if (values.are_probabilities()) {
        return found("numbers of 0 to 1 that sum to 1", "logarithms of probabilities",
                     "--loss nll_probabilities");
      }
      if (values.all([](double x) { return !(x > kSumTolerance); })) return {};
      return found("numbers above 0", "logarithms of probabilities", "--loss cross_entropy");
    case PredictionKind::kProbabilities:
      if (values.all([](double x) { return !(x < 0 || x > 1 + kSumTolerance); })) return {};
      if (loss.kind == LossKind::kBce) {
        return found("numbers below 0 or above 1", "probabilities", "--loss bce_with_logits");
      }
      return found("numbers below 0 or above 1", "probabilities",
                   values.are_logarithms() ? "--loss nll" : "--loss cross_entropy");
    default:
      return {};
  }
}

Status feed_first(const ModelSetup& setup, const Graph& graph, RowSource& rows,
                  std::span<const int64_t> samples, ForwardPass& pass) {
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    const auto column = std::ranges::find(rows.columns(), input.name, &BoundColumn::name);
    if (column == rows.columns().end()) continue;
    std::vector<std::byte> bytes(static_cast<size_t>(std::ssize(samples)) * column->row_bytes());
    OFSDP_REJECT_IF(bytes.size() != input.desc.bytes() || column->dtype != input.desc.dtype,
                    "'{}' is read as other rows", input.name);
    const auto index = static_cast<int>(column - rows.columns().begin());
    OFSDP_RETURN_IF_ERROR(rows.read_rows(index, samples, bytes.data()));
    pass.feed(id, bytes);
  }
  const GraphUses uses(graph);
  for (const Parameter& p : graph.parameters) {
    const bool read = !uses.readers(p.value).empty();
    if (!read || graph.value(p.value).kind != ValueKind::kParameter) continue;
    std::vector<std::byte> bytes;
    OFSDP_RETURN_IF_ERROR(read_weight(setup.source->file_of(p), graph, p, bytes));
    pass.feed(p.value, bytes);
  }
  return {};
}

Result<PredictedValues> compute(const ModelSetup& setup, Graph graph, ValueId prediction,
                                RowSource& rows, int64_t count) {
  OFSDP_ASSIGN_OR_RETURN(const ValueId copy,
                         GraphEditor(graph).add1("ofsdp.Copy", "first prediction", {prediction}));
  graph.outputs = {copy};
  prune(graph, {copy});
  OFSDP_REJECT_IF(
      ReferenceRun::seconds_of(graph) > kMostSeconds || ReferenceRun::bytes_of(graph) > kMostBytes,
      "it takes too long");
  std::vector<int64_t> samples(static_cast<size_t>(count));
  std::iota(samples.begin(), samples.end(), 0);
  ForwardPass pass(graph);
  OFSDP_RETURN_IF_ERROR(feed_first(setup, graph, rows, samples, pass));
  OFSDP_RETURN_IF_ERROR(pass.run());
  const TensorDesc& desc = graph.value(copy).desc;
  return PredictedValues{desc.shape, to_doubles(desc, pass.output(copy).data())};
}

Result<UnfitPrediction> look_at(const ModelSetup& setup, const LossSpec& loss) {
  const ValueId open = find_output(setup.graph, loss.prediction);
  if (open == 0 || !is_open(loss, computed_by(setup.graph, open))) return UnfitPrediction();
  RowSource& rows = setup.data.eval ? setup.data.eval_rows() : setup.data.train_rows();
  const int64_t fixed = fixed_batch(setup.graph);
  const int64_t count = fixed > 0 ? fixed : std::min(kFirstRows, rows.samples());
  OFSDP_REJECT_IF(count > rows.samples(), "there are too few rows");
  OFSDP_ASSIGN_OR_RETURN(Graph graph, setup.source->specialized(count, Mode::kEval));
  const ValueId prediction = find_output(graph, loss.prediction);
  OFSDP_REJECT_IF(prediction == 0, "it is no output");
  OFSDP_ASSIGN_OR_RETURN(const PredictedValues values,
                         compute(setup, std::move(graph), prediction, rows, count));
  return judged(loss, values);
}

}  // namespace

std::vector<UnfitPrediction> unfit_predictions(const ModelSetup& setup) {
  std::vector<UnfitPrediction> list;
  for (const LossSpec& loss : setup.source->settings().losses) {
    Result<UnfitPrediction> found = look_at(setup, loss);
    if (found.ok() && !found->problem.empty()) list.push_back(*std::move(found));
  }
  return list;
}

}  // namespace ofsdp::runtime
