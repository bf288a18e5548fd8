// The loss of a graph: an output of the file that is one already, or a loss node appended to a
// prediction.
//
// resolve_labels and, on a specialized graph, resolve_loss decide what the user left open (`auto`,
// the only candidate); attach_losses then gives each specialized graph its loss (and, in
// evaluation, the count of right answers). Classes are the last axis of the prediction; leading
// axes are flattened and so are the labels, after they are brought into the order of the
// prediction's samples (importer/passes/sample_order.h).
// contrastive compares two outputs row by row and has no labels; its negatives are the rows of all
// ranks (importer/graph/rank_rows.h).
//
// A run has one LossSpec or several, whose weighted sum is the loss: term i of the graph
// (Graph::terms) is that of spec i. Each term is a mean or a sum of its own.
//
// loss_count says what a micro-batch's term counts with in the global mean: labels other than
// ignore_index where it comes from SoftmaxCrossEntropyLoss or NegativeLogLikelihoodLoss with
// reduction mean whose labels are a column, otherwise samples. A term that such a node with
// reduction sum makes itself (views, Identity and casts may follow) is a sum: it counts 1.
//
// Threads: any. Errors: kInput naming flag, file and candidates.
#pragma once

#include <limits>
#include <map>
#include <span>

#include "importer/graph/graph.h"
#include "importer/graph/rank_rows.h"
#include "importer/passes/sample_order.h"
#include "kernels/base/names.h"

namespace ofsdp::importer {

enum class LossKind {
  kAuto,
  kOutput,
  kCrossEntropy,
  kNll,
  kMse,
  kBceWithLogits,
  kOperator,
  kContrastive
};
// kOutput, kOperator and kContrastive are named by their graph outputs or operator.
OFSDP_ENUM_NAMES(LossKind, {kAuto, "auto"}, {kCrossEntropy, "cross_entropy"}, {kNll, "nll"},
                 {kMse, "mse"}, {kBceWithLogits, "bce_with_logits"})

struct LossSpec {
  LossKind kind = LossKind::kAuto;
  std::string output;      // kOutput, kContrastive: a graph output; kOperator: "domain.Name"
  std::string prediction;  // empty: the only candidate
  std::string labels;      // empty: the only candidate; a data column
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  double weight = 1;   // in the sum of several
  std::string said{};  // KIND:PREDICTION:LABELS as given, for messages; empty: flags of their own
  std::string other = {};     // kContrastive: the graph output that `output` is paired with
  double temperature = 0.07;  // kContrastive
  RankRows ranks = {};        // kContrastive: whose rows are negatives
  int64_t batch = 1;          // samples of the graph
  int64_t outer = 1;          // of the prediction (importer/passes/sample_order.h); 0: unknown
  int64_t labels_outer = 1;   // kOutput: of the labels that the loss node reads
};

// A label that no data has: where the loss node leaves none out.
inline constexpr int64_t kNoIgnoreIndex = std::numeric_limits<int64_t>::min();

struct LossCount {
  bool by_label = false;  // else by sample
  bool sum = false;       // over the global batch, by a loss node with reduction sum; else a mean
  std::string labels;     // the column
  int64_t ignore_index = kNoIgnoreIndex;
  int64_t classes = 0;
  ConstantPtr class_weights;  // float32[classes] or null
};

// A prediction that metrics need the rows of.
struct MeasureSpec {
  std::string metrics;      // for messages
  std::string prediction;   // a graph output, whose labels are its loss's; empty: the first loss's
  bool likelihood = false;  // of the label as well
  int64_t outer = 1;        // of the prediction, as in LossSpec
};

// Resolves spec.labels, where the loss needs it; `columns`: names of the data's columns.
Result<LossSpec> resolve_labels(const Graph& graph, LossSpec spec,
                                const std::vector<std::string>& columns);

// Resolves loss and prediction; the graph is specialized.
Result<LossSpec> resolve_loss(const Graph& graph, LossSpec spec);

// Find where samples stand in the prediction of a loss or a measure. `graph`: that of `order`,
// without a loss; `spec` is resolved.
Status order_samples(SampleOrder& order, const Graph& graph, LossSpec& spec);
// Returns LossSpec::outer of the output of another graph that is named like the prediction of a
// loss; that of the loss if it has no such output.
Result<int64_t> outer_of(SampleOrder& order, const Graph& graph, const LossSpec& spec,
                         const std::string& flag);
Status order_samples(SampleOrder& order, const Graph& graph, std::span<const LossSpec> specs,
                     MeasureSpec& measure);

// Returns the column that the loss needs besides the graph's own inputs, or "".
std::string label_column(const Graph& graph, const LossSpec& spec);

// dtype that the label column is read as.
DType label_dtype(const LossSpec& spec);

// Adds a term for each of `specs`. `labels`: the shapes of a micro-batch of each label column that
// is no graph input. With `count_matches`, also graph.matches, where prediction and labels of the
// first allow it.
Result<Graph> attach_losses(const Graph& graph, std::span<const LossSpec> specs,
                            const std::map<std::string, Shape>& labels, bool count_matches);
// The same of one loss.
Result<Graph> attach_loss(const Graph& graph, const LossSpec& spec, const Shape& label_shape,
                          bool count_matches);

// Adds graph.measured, one for each of `wanted`; the graph has its loss.
Status measure(Graph& graph, std::span<const LossSpec> specs,
               const std::vector<MeasureSpec>& wanted);

LossCount loss_count(const Graph& graph, size_t term = 0);

}  // namespace ofsdp::importer
