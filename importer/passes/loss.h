// The loss of a graph: an output of the file that is already a loss, or a loss node appended to a
// prediction.
//
// A run resolves its losses once, in this order:
//
//   resolve_labels   on the symbolic graph: the column of labels
//   resolve_loss     from here on, on a specialized graph: kind, output, prediction
//   take_scores      of TrainingSource: scores, logit, before
//   order_samples    batch, outer, labels_outer
//
// attach_losses then adds the loss to each specialized graph and, for evaluation, the count of
// right answers. Classes are the last axis of the prediction. Leading axes are flattened, and so
// are the labels, in the order of the prediction's samples (importer/passes/sample_order.h).
// contrastive compares two outputs row by row and needs no labels; rows of all ranks are negatives
// (RankRows in importer/graph/graph.h).
//
// A loss of scores or logits looks through a Softmax or Sigmoid at the prediction's end
// (scores_before). TrainingSource::take_scores decides it once for a run.
//
// A run has a list of LossSpecs; the loss is their weighted sum. Spec i becomes term i of the graph
// (Graph::terms), a mean or a sum of its own. importer/passes/losses.inc lists the kinds.
//
// loss_count says how much a micro-batch's term weighs in the global mean. A term counts labels
// other than ignore_index if it comes from SoftmaxCrossEntropyLoss or NegativeLogLikelihoodLoss
// with reduction mean and the labels are a column; otherwise it counts samples. A term that such a
// node makes with reduction sum (views, Identity and casts may follow) is a sum and counts 1. A
// teacher's term is a mean over the rows that its loss keeps, without class weights.
//
// Errors: kInput naming flag, file and candidates.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "importer/passes/sample_order.h"
#include "kernels/base/names.h"

namespace ofsdp::importer {

enum class LossKind {
#define LOSS(name, Kind, ...) k##Kind,
#include "importer/passes/losses.inc"
};
constexpr auto enum_names(LossKind) {
  return std::to_array<EnumName<LossKind>>({
#define LOSS(name, Kind, ...) {LossKind::k##Kind, #name},
#define FORM(...)
#include "importer/passes/losses.inc"
  });
}

// The labels that a loss compares with: integers that count as classes, numbers, whatever its
// operator takes.
enum class LabelKind { kNone, kClasses, kValues, kAny };

// The meaning of a prediction to its loss.
enum class PredictionKind { kValues, kScores, kLogProbabilities, kLogits, kProbabilities };

// The options that a loss takes; the others have no effect on it.
enum LossTakes : uint32_t {
  kTakesPrediction = 1,
  kTakesLabels = 2,
  kTakesIgnoreIndex = 4,
  kTakesSmoothing = 8,
  kTakesClassWeights = 16,
  kTakesPositiveWeights = 32,
};

// A row of losses.inc.
struct LossTraits {
  const char* name = "";
  LabelKind labels = LabelKind::kNone;
  PredictionKind reads = PredictionKind::kValues;
  const char* op = nullptr;   // of flat predictions and labels; null: the graph has the loss, or
                              // loss.cpp builds it
  uint32_t takes = 0;         // LossTakes
  bool joins_rows = false;    // rows of all ranks meet
  bool of_sequences = false;  // labels are not aligned with the prediction's steps in time
};
const LossTraits& loss_traits(LossKind kind);

// A --loss with the options that belong to it, and the graph that resolves it.
struct LossSpec {
  LossKind kind = LossKind::kAuto;
  std::string output;      // kOutput, kContrastive: a graph output; kOperator: "domain.Name"
  std::string prediction;  // empty: the only candidate
  std::string labels;      // a data column; empty: the only candidate, or no labels
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  std::vector<float> class_weights = {};     // one for each class; empty: 1
  std::vector<float> positive_weights = {};  // of labels 1: one, or one for each column; empty: 1
  bool global_mean = true;                   // over the labels of all ranks and micro-batches
  double weight = 1;                         // in the sum of several losses
  std::string said{};      // KIND:PREDICTION:LABELS as given, for messages; empty: separate flags
  std::string other = {};  // kContrastive: the graph output paired with `output`
  double temperature = 0.07;  // kContrastive
  int64_t blank = 0;          // kCtc: the class without a label
  RankRows ranks = {};        // kContrastive: ranks with rows that are negatives
  int64_t batch = 1;          // samples of the graph
  int64_t outer = 1;          // of the prediction (importer/passes/sample_order.h); 0: unknown
  int64_t labels_outer = 1;   // kOutput: of the labels that the loss node reads
  std::string scores = {};    // the output that the loss reads for `prediction`; empty: itself
  std::string logit = {};     // a Sigmoid's input z: the scores are [0, z], two classes; or empty
  std::string before = {};    // the node between scores and prediction, as "Softmax 'NODE'"
  std::string taught = {};    // the teacher's output for it; empty: it has that of the prediction
};

// No data has this label; it means that the loss node ignores none.
inline constexpr int64_t kNoIgnoreIndex = std::numeric_limits<int64_t>::min();

// A term of a micro-batch, and its part in the loss of the global batch.
enum class TermForm {
  kMean,       // a mean over the micro-batch, which counts by its share of the global count
  kNumerator,  // a sum, divided by the global count
  kSum,        // a sum, added up as it is
};

struct LossCount {
  bool by_label = false;  // else by sample
  TermForm form = TermForm::kMean;
  std::string labels;  // the column
  int64_t ignore_index = kNoIgnoreIndex;
  int64_t classes = 0;
  ConstantPtr class_weights;  // float32[classes] or null
};

// A prediction with rows for metrics.
struct MeasureSpec {
  std::string metrics;  // for messages
  std::string
      prediction;  // a graph output that has a loss with labels; empty: that of the first loss
  bool likelihood = false;  // also the likelihood of the label
  bool sequences = false;   // of rows of labels without places
  int64_t space = -1;       // sequences: the class between words; -1: none
  int64_t outer = 1;        // of the prediction, as in LossSpec
};

// Resolves spec.labels if the loss needs labels. `columns`: names of the columns of the data.
Result<LossSpec> resolve_labels(const Graph& graph, LossSpec spec,
                                const std::vector<std::string>& columns);

// Resolves loss and prediction. REQUIRES: the graph is specialized.
Result<LossSpec> resolve_loss(const Graph& graph, LossSpec spec);

// Finds the order of samples in the prediction of a loss or a measure. REQUIRES: `order` is of
// `graph`, which has no loss yet; `spec` is resolved.
Status order_samples(SampleOrder& order, const Graph& graph, LossSpec& spec);
// Returns LossSpec::outer of an output of another graph with the name of the prediction; the value
// of the loss if there is no such output.
Result<int64_t> outer_of(SampleOrder& order, const Graph& graph, const LossSpec& spec,
                         const std::string& flag);
Status order_samples(SampleOrder& order, const Graph& graph, std::span<const LossSpec> specs,
                     MeasureSpec& measure);

// The end of a prediction that a loss looks through. cross_entropy and ctc read the scores before a
// Softmax or LogSoftmax over the last axis, or before two classes [1 - Sigmoid, Sigmoid];
// bce_with_logits those before a Sigmoid. Views and casts
// may follow the node; it may be in pieces, as exporters write it.
struct ScoresBefore {
  ValueId value = 0;         // 0: the loss reads the prediction itself
  std::string node;          // "Softmax 'NODE'"
  bool two_classes = false;  // [0, value] are the scores: the prediction is [1 - p, p], p = Sigmoid
};
// REQUIRES: the graph is specialized and has no loss; `prediction` is an output.
ScoresBefore scores_before(const Graph& graph, const LossSpec& spec, ValueId prediction);

// Returns the column that the loss needs besides the inputs of the graph, or "".
std::string label_column(const Graph& graph, const LossSpec& spec);

// Returns the dtype of the label column.
DType label_dtype(const LossSpec& spec);

// Adds a term for each spec. `labels`: shapes of the label columns that are no graph inputs, for a
// micro-batch. If `count_matches`, also adds graph.matches if prediction and labels of the first
// loss allow it.
Result<Graph> attach_losses(const Graph& graph, std::span<const LossSpec> specs,
                            const std::map<std::string, Shape>& labels, bool count_matches);
// The same for one loss.
Result<Graph> attach_loss(const Graph& graph, const LossSpec& spec, const Shape& label_shape,
                          bool count_matches);

// Adds graph.measured, an entry for each of `wanted`. REQUIRES: the graph has the loss.
Status measure(Graph& graph, std::span<const LossSpec> specs,
               const std::vector<MeasureSpec>& wanted);

LossCount loss_count(const Graph& graph, size_t term = 0);

// Returns true if the loss must be kNumerator: with label smoothing a row whose class weighs 0 has
// a loss, but adds nothing to the count, so a micro-batch of such rows has no mean.
bool is_numerator(const LossSpec& spec);

// --- for the parts of attach_losses ---

bool is_scalar_float(const Value& value);
// Return outputs of the graph, or 0: by name; the value that a loss reads.
ValueId find_output(const Graph& graph, const std::string& name);
ValueId find_operand(const Graph& graph, const LossSpec& spec);
// Returns the value in float32: itself if it is no other floating type (or 0), else a new Cast's.
Result<ValueId> in_float32(Graph& graph, ValueId id, const std::string& name);

// Adds the nodes of a loss other than kOutput.
Result<ValueId> add_loss(Graph& graph, const LossSpec& spec, ValueId prediction, ValueId labels);

// Adds a node `name` that makes rows [time * batch, classes] of a prediction in three axes, and
// returns them with the attributes of CTC operators that read them. `outer`: as in LossSpec.
// Errors: kInput for other axes.
Result<std::pair<ValueId, Attributes>> sequence_rows(Graph& graph, const LossSpec& spec,
                                                     const std::string& name, ValueId prediction,
                                                     ValueId labels, int64_t outer);

// The teacher: a second model that the trained one, the student, imitates (--teacher). It is frozen
// and in evaluation mode; the outputs become terms of the loss (Hinton et al., "Distilling the
// Knowledge in a Neural Network", 2015).
//
// The teacher joins the graphs of the student, so units, gathers, memory and engines treat its
// parameters as any frozen ones:
//
//   with_teacher      adds its parameters to the symbolic graph, after those of the student, and
//                     the inputs that the student lacks; all graphs of a run have these parameters
//   join_teacher      adds its nodes to a specialized training graph, before the student's, so its
//                     activations are free when the student begins
//   add_distillation  adds the terms to a training graph
//
// The evaluation graph has none of its nodes and terms, and the written file nothing. Names of the
// teacher get a prefix that no name of the student has. Parameter::initializer is an index of the
// teacher's own file.
//
// Errors: kInput naming the teacher's file.

struct Distillation {
  double weight = 0.5;  // of the divergence from the teacher; the rest is that of the loss
  double temperature = 2;
};

struct Teacher {
  OnnxFile file;
  Graph symbolic;  // the part that makes outputs of the student; frozen
  Distillation how;
  std::string prefix;
  std::string
      identity;  // hash of the graph and of some values of each weight, to tell teachers apart
};

// REQUIRES: `imported` comes from `file`; `student` is symbolic.
Result<Teacher> make_teacher(OnnxFile file, const Graph& imported, const Graph& student,
                             const Distillation& how);

Result<Graph> with_teacher(const Graph& student, const Teacher& teacher);

// REQUIRES: with_teacher made `student`; both graphs are specialized. `taught` receives the outputs
// of the teacher in the result, by their names in the file.
Result<Graph> join_teacher(const Graph& student, const Graph& teacher, const Teacher& of,
                           std::map<std::string, ValueId>& taught);

// REQUIRES: attach_losses has run for `specs`.
Status add_distillation(Graph& graph, std::span<const LossSpec> specs, const Teacher& teacher,
                        const std::map<std::string, ValueId>& taught);

}  // namespace ofsdp::importer
