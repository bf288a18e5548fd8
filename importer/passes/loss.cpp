#include "importer/passes/loss.h"

#include <algorithm>

#include "importer/graph/graph.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

constexpr LossTraits kLosses[] = {
#define LOSS(row, Kind, ...) {.name = #row, __VA_ARGS__},
#include "importer/passes/losses.inc"
};

bool has_classes(LossKind kind) { return loss_traits(kind).labels == LabelKind::kClasses; }
bool has_labels(LossKind kind) { return loss_traits(kind).labels != LabelKind::kNone; }

// Returns the flag as the user gave it: KIND:PREDICTION:LABELS, or a flag of its own.
std::string flag_of(const LossSpec& spec, const char* flag, const std::string& name) {
  return spec.said.empty() ? format_text("{} {}", flag, name)
                           : format_text("--loss {}: '{}'", spec.said, name);
}

std::string output_names(const Graph& graph) {
  std::vector<std::string> names;
  for (ValueId id : graph.outputs) {
    names.push_back(graph.value(id).name + " " + graph.value(id).desc.text());
  }
  return joined(names, ", ");
}

// Returns the value of `ids` with that name; 0: none.
ValueId find_named(const Graph& graph, const std::vector<ValueId>& ids, const std::string& name) {
  for (const ValueId id : ids) {
    if (graph.value(id).name == name) return id;
  }
  return 0;
}

}  // namespace

bool is_scalar_float(const Value& value) {
  return is_floating(value.desc.dtype) && value.desc.numel() == 1 && value.desc.shape.rank() <= 1;
}

ValueId find_output(const Graph& graph, const std::string& name) {
  return find_named(graph, graph.outputs, name);
}

Result<ValueId> in_float32(Graph& graph, ValueId id, const std::string& name) {
  if (id == 0 || !is_floating(graph.value(id).desc.dtype) ||
      graph.value(id).desc.dtype == DType::kFloat32) {
    return id;
  }
  return GraphEditor(graph).add1("Cast", name, {id}, {{"to", onnx_number(DType::kFloat32)}});
}

ValueId find_operand(const Graph& graph, const LossSpec& spec) {
  return find_output(graph, spec.scores.empty() ? spec.prediction : spec.scores);
}

namespace {

Status resolve_output(const Graph& graph, LossSpec& spec) {
  if (spec.kind == LossKind::kOutput) {
    const ValueId id = find_output(graph, spec.output);
    OFSDP_REJECT_IF(id == 0, "--loss output:{}: {} has no such output; it has {}", spec.output,
                    graph.file, output_names(graph));
    if (is_scalar_float(graph.value(id))) return {};
    return input_error("--loss output:{}: expected a float scalar, found {}", spec.output,
                       graph.value(id).desc.text());
  }
  std::vector<ValueId> scalars;
  for (ValueId id : graph.outputs) {
    if (is_scalar_float(graph.value(id))) scalars.push_back(id);
  }
  OFSDP_REJECT_IF(scalars.size() != 1,
                  "--loss auto: expected one float scalar among the outputs of {}, found {} in {}; "
                  "name a loss",
                  graph.file, scalars.size(), output_names(graph));
  spec.kind = LossKind::kOutput;
  spec.output = graph.value(scalars[0]).name;
  return {};
}

std::string contrastive_name(const LossSpec& spec) {
  return format_text("--loss contrastive:{}:{}", spec.output, spec.other);
}

Status resolve_contrastive(const Graph& graph, LossSpec& spec) {
  for (const std::string& name : {spec.output, spec.other}) {
    const ValueId id = find_output(graph, name);
    OFSDP_REJECT_IF(id == 0, "{}: {} has no output '{}'; it has {}", contrastive_name(spec),
                    graph.file, name, output_names(graph));
    const TensorDesc& desc = graph.value(id).desc;
    OFSDP_REJECT_IF(!is_floating(desc.dtype) || desc.shape.rank() != 2,
                    "{}: expected floats [rows, width], found output '{}' {}",
                    contrastive_name(spec), name, desc.text());
  }
  const TensorDesc& a = graph.value(find_output(graph, spec.output)).desc;
  const TensorDesc& b = graph.value(find_output(graph, spec.other)).desc;
  OFSDP_REJECT_IF(a.shape != b.shape, "{}: expected two outputs of one shape, found {} and {}",
                  contrastive_name(spec), a.text(), b.text());
  spec.prediction = spec.output;
  return {};
}

bool is_prediction(const Value& value) {
  return is_floating(value.desc.dtype) && value.desc.shape.rank() >= 1;
}

std::vector<std::string> prediction_candidates(const Graph& graph) {
  std::vector<std::string> names;
  for (ValueId id : graph.outputs) {
    if (is_prediction(graph.value(id))) names.push_back(graph.value(id).name);
  }
  return names;
}

Status resolve_prediction(const Graph& graph, LossSpec& spec) {
  if (!spec.prediction.empty()) {
    const ValueId found = find_output(graph, spec.prediction);
    OFSDP_REJECT_IF(found != 0 && !spec.said.empty() && !is_prediction(graph.value(found)),
                    "{}: expected a float output with a batch axis, found {}",
                    flag_of(spec, "", spec.prediction), graph.value(found).desc.text());
    if (found != 0) return {};
    return input_error("{}: {} has no such output; it has {}",
                       flag_of(spec, "--prediction", spec.prediction), graph.file,
                       output_names(graph));
  }
  const auto names = prediction_candidates(graph);
  if (names.size() == 1) spec.prediction = names[0];
  if (names.size() == 1 || spec.kind == LossKind::kOutput) return {};
  return input_error("--prediction: expected one float output of {}, found {} ({}); name one",
                     graph.file, names.size(), output_names(graph));
}

// Returns the value under views, casts and changes of order.
ValueId under_views(const Graph& graph, ValueId id) {
  while (const Node* node = maker_of(graph, id)) {
    const std::string op = node->op->full_name();
    if (!node->op->view && op != "Cast" && op != "Transpose") break;
    id = node->inputs[0];
  }
  return id;
}

// Returns the node over classes that makes a term of the loss, or null.
const Node* class_loss_of(const Graph& graph, ValueId term) {
  const Node* node = maker_of(graph, under_views(graph, term));
  if (node == nullptr) return nullptr;
  static constexpr std::string_view kNames[] = {
      "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "ofsdp.NarrowCrossEntropyLoss"};
  return std::ranges::find(kNames, node->op->full_name()) != std::end(kNames) ? node : nullptr;
}

const Node* class_loss_node(const Graph& graph, size_t term) {
  return class_loss_of(graph, graph.terms[term].value);
}

// Returns the labels for accuracy in an evaluation: the column, or the input of the loss node.
ValueId labels_for_accuracy(const Graph& graph, const LossSpec& spec, size_t term) {
  if (!spec.labels.empty()) {
    if (const ValueId id = find_named(graph, graph.inputs, spec.labels)) return id;
  }
  const Node* node = class_loss_node(graph, term);
  return node == nullptr ? 0 : node->inputs[1];
}

// Returns whether the loss node reads the prediction with more than two classes on axis 1.
bool has_inner_classes(const Graph& graph, size_t term, ValueId prediction) {
  const Node* loss = class_loss_node(graph, term);
  return loss != nullptr && loss->inputs[0] == prediction &&
         graph.value(prediction).desc.shape.rank() > 2;
}

// Returns the labels in the order of a prediction; 0 if one of the orders is unknown.
Result<ValueId> labels_in_order(Graph& graph, const LossSpec& spec, ValueId labels, int64_t outer) {
  const int64_t from = graph.value(labels).kind == ValueKind::kInput ? 1 : spec.labels_outer;
  if (from == 0 || outer == 0) return ValueId{0};
  return reordered(graph, labels, spec.batch, from, outer);
}

// Adds graph.matches if prediction (0: none) and labels allow it. REQUIRES: the graph has the loss.
Status add_matches(Graph& graph, const LossSpec& spec, ValueId prediction) {
  ValueId labels = labels_for_accuracy(graph, spec, 0);
  if (loss_traits(spec.kind).of_sequences) return {};
  if (prediction == 0 || labels == 0 || !is_integer(graph.value(labels).desc.dtype)) return {};
  if (has_inner_classes(graph, 0, prediction)) return {};
  const Shape& shape = graph.value(prediction).desc.shape;
  const int64_t classes = shape.rank() == 0 ? 0 : shape[shape.rank() - 1];
  if (classes < 2 ||
      graph.value(prediction).desc.numel() != graph.value(labels).desc.numel() * classes) {
    return {};
  }
  OFSDP_ASSIGN_OR_RETURN(labels, labels_in_order(graph, spec, labels, spec.outer));
  if (labels == 0) return {};
  GraphEditor editor(graph);
  OFSDP_ASSIGN_OR_RETURN(const ValueId rows,
                         editor.add1("ofsdp.CollapseLeading", "accuracy.prediction", {prediction}));
  OFSDP_ASSIGN_OR_RETURN(ValueId flat,
                         editor.add1("ofsdp.CollapseAll", "accuracy.labels", {labels}));
  if (graph.value(flat).desc.dtype != DType::kInt64) {
    OFSDP_ASSIGN_OR_RETURN(flat,
                           editor.add1("Cast", "accuracy.cast", {flat}, {{"to", int64_t{7}}}));
  }
  const LossCount count = loss_count(graph);
  const int64_t ignored = count.by_label ? count.ignore_index : spec.ignore_index;
  OFSDP_ASSIGN_OR_RETURN(graph.matches, editor.add1("ofsdp.ArgmaxMatches", "accuracy", {rows, flat},
                                                    {{"ignore_index", ignored}}));
  return {};
}

// Returns the number of classes or columns of the prediction, or 0 if the labels do not fit.
int64_t measured_width(const Graph& graph, ValueId prediction, ValueId labels) {
  if (prediction == 0 || labels == 0) return 0;
  const TensorDesc& scores = graph.value(prediction).desc;
  const TensorDesc& given = graph.value(labels).desc;
  const int rank = scores.shape.rank();
  if (!is_integer(given.dtype)) {
    const bool fits = is_floating(given.dtype) && scores.numel() == given.numel();
    return fits && rank > 0 ? (rank == 1 ? 1 : scores.shape[rank - 1]) : 0;
  }
  const int64_t classes = rank == 0 ? 0 : scores.shape[rank - 1];
  return classes > 1 && scores.numel() == given.numel() * classes ? classes : 0;
}

// Returns the index of the loss that has the labels of a measure.
size_t loss_of(std::span<const LossSpec> specs, const MeasureSpec& wanted) {
  const auto found = std::ranges::find(specs, wanted.prediction, &LossSpec::prediction);
  return found == specs.end() ? 0 : static_cast<size_t>(found - specs.begin());
}

std::optional<double> threshold_of(LossKind kind) {
  if (kind == LossKind::kBceWithLogits) return 0.0;
  return kind == LossKind::kBce ? std::optional(0.5) : std::nullopt;
}

// Brings the prediction into the order of the labels, so the columns match them.
Result<Measured> measured_values(Graph& graph, const LossSpec& spec, ValueId prediction,
                                 ValueId labels, int64_t outer) {
  const Shape shape = graph.value(prediction).desc.shape;
  Measured made{0, /*classes=*/false, measured_width(graph, prediction, labels),
                threshold_of(spec.kind)};
  if (outer > 1) {
    const bool samples_last = outer * spec.batch == shape.numel();
    if (samples_last) made.width = shape[std::max(shape.rank() - 2, 0)];
    OFSDP_ASSIGN_OR_RETURN(prediction, reordered(graph, prediction, spec.batch, outer, 1));
  }
  OFSDP_ASSIGN_OR_RETURN(
      made.rows, GraphEditor(graph).add1("ofsdp.MeasureValues", "measure", {prediction, labels},
                                         {{"columns", made.width}}));
  return made;
}

Result<Measured> measured_sequences(Graph& graph, const LossSpec& spec, const MeasureSpec& wanted,
                                    ValueId prediction, ValueId labels) {
  const int64_t outer = wanted.prediction.empty() ? spec.outer : wanted.outer;
  OFSDP_ASSIGN_OR_RETURN(
      auto made, sequence_rows(graph, spec, "measure.prediction", prediction, labels, outer));
  made.second.set("space", wanted.space);
  Measured measured{.classes = true, .width = 1, .sequences = true};
  OFSDP_ASSIGN_OR_RETURN(measured.rows, GraphEditor(graph).add1("ofsdp.MeasureCtc", "measure",
                                                                {made.first, labels}, made.second));
  return measured;
}

Result<Measured> measured_rows(Graph& graph, std::span<const LossSpec> specs,
                               const MeasureSpec& wanted) {
  const size_t term = wanted.prediction.empty() ? 0 : loss_of(specs, wanted);
  const LossSpec& spec = specs[term];
  const bool own = wanted.prediction.empty() || wanted.prediction == spec.prediction;
  OFSDP_ASSIGN_OR_RETURN(
      ValueId prediction,
      in_float32(graph, own ? find_operand(graph, spec) : find_output(graph, wanted.prediction),
                 "measure.scores"));
  ValueId labels = labels_for_accuracy(graph, spec, term);
  const bool of_sequences = loss_traits(spec.kind).of_sequences;
  OFSDP_REJECT_IF(wanted.sequences != of_sequences, "--eval-metrics {}: expected {}",
                  wanted.metrics,
                  of_sequences ? "cer or wer with --loss ctc" : "--loss ctc, which has sequences");
  if (of_sequences) return measured_sequences(graph, spec, wanted, prediction, labels);
  const PredictionKind reads = loss_traits(spec.kind).reads;
  bool logs = reads == PredictionKind::kLogProbabilities;
  const Node* loss = class_loss_node(graph, term);
  const bool fits = measured_width(graph, prediction, labels) != 0;
  const int64_t outer = wanted.prediction.empty() ? spec.outer : wanted.outer;
  if (fits && is_floating(graph.value(labels).desc.dtype))
    return measured_values(graph, spec, prediction, labels, outer);
  if (fits && has_inner_classes(graph, term, prediction)) {
    labels = 0;
  } else if (fits) {
    OFSDP_ASSIGN_OR_RETURN(labels, labels_in_order(graph, spec, labels, outer));
  }
  // A loss of probabilities reads their logarithms.
  const bool of_loss =
      wanted.prediction.empty() && (!fits || reads == PredictionKind::kProbabilities);
  if (of_loss && loss != nullptr && graph.value(loss->inputs[0]).desc.shape.rank() == 2) {
    prediction = loss->inputs[0];
    labels = loss->inputs[1];
    logs = loss->op->full_name() == "NegativeLogLikelihoodLoss";
  }
  const int64_t width = measured_width(graph, prediction, labels);
  OFSDP_REJECT_IF(width == 0,
                  "--eval-metrics {}: expected a prediction of {} and labels that fit it, found "
                  "none; --prediction and --labels name them",
                  wanted.metrics, graph.file);
  GraphEditor editor(graph);
  Measured made{0, /*classes=*/true, width, reads == PredictionKind::kLogits};
  if (graph.value(labels).desc.dtype != DType::kInt64) {
    OFSDP_ASSIGN_OR_RETURN(labels,
                           editor.add1("Cast", "measure.cast", {labels}, {{"to", int64_t{7}}}));
  }
  const LossCount count = loss_count(graph, term);
  const Attributes attributes{
      {"ignore_index", count.by_label ? count.ignore_index : spec.ignore_index},
      {"likelihood", int64_t{wanted.likelihood ? (logs ? 2 : 1) : 0}}};
  OFSDP_ASSIGN_OR_RETURN(
      made.rows, editor.add1("ofsdp.MeasureClasses", "measure", {prediction, labels}, attributes));
  return made;
}

}  // namespace

const LossTraits& loss_traits(LossKind kind) { return kLosses[static_cast<size_t>(kind)]; }

Result<LossSpec> resolve_labels(const Graph& graph, LossSpec spec,
                                const std::vector<std::string>& columns) {
  const std::string all = joined(columns, ", ");
  if (!spec.labels.empty()) {
    if (std::ranges::find(columns, spec.labels) != columns.end()) return spec;
    return input_error("{}: the data has no such column; it has {}",
                       flag_of(spec, "--labels", spec.labels), all);
  }
  if (!has_labels(spec.kind)) return spec;
  std::vector<std::string> spare;
  for (const std::string& column : columns) {
    if (find_named(graph, graph.inputs, column) == 0) spare.push_back(column);
  }
  if (spare.size() == 1) spec.labels = spare[0];
  if (std::ranges::find(columns, "labels") != columns.end()) spec.labels = "labels";
  if (!spec.labels.empty()) return spec;
  const bool unknown = !spare.empty() && spare.size() == columns.size();
  return input_error(
      "--labels: expected one column beside the inputs of {}, found {} (columns: {}){}", graph.file,
      spare.size(), all,
      unknown         ? "; none is an input: `fsdp-run prepare DATA MODEL` writes a YAML file"
      : spare.empty() ? "; add one, in a folder labels.npy"
                      : "; name one");
}

Result<LossSpec> resolve_loss(const Graph& graph, LossSpec spec) {
  if (spec.kind == LossKind::kContrastive) {
    OFSDP_RETURN_IF_ERROR(resolve_contrastive(graph, spec));
    return spec;
  }
  if (!has_labels(spec.kind)) OFSDP_RETURN_IF_ERROR(resolve_output(graph, spec));
  OFSDP_RETURN_IF_ERROR(resolve_prediction(graph, spec));
  return spec;
}

namespace {

// Pairs rows of both outputs one by one.
Status check_rows(SampleOrder& order, const Graph& graph, const LossSpec& spec) {
  const std::string flag = contrastive_name(spec);
  OFSDP_ASSIGN_OR_RETURN(const int64_t a, order.outer(find_output(graph, spec.output), 1, flag));
  OFSDP_ASSIGN_OR_RETURN(const int64_t b, order.outer(find_output(graph, spec.other), 1, flag));
  if (a == b) return {};
  return input_error(
      "{}: expected the rows of both outputs in one order of samples, found {} and "
      "{} of a sample before the next",
      flag, spec.output, spec.other);
}

// A loss in the file keeps its own order; accuracy pairs an output with the labels of the loss.
void order_accuracy(SampleOrder& order, const Graph& graph, LossSpec& spec) {
  const ValueId prediction = find_output(graph, spec.prediction);
  const Node* loss = class_loss_of(graph, find_output(graph, spec.output));
  if (prediction == 0 || loss == nullptr) return;
  const ValueId labels = loss->inputs[1];
  if (measured_width(graph, prediction, labels) == 0) return;
  const auto known = [&](ValueId id, int width_axes) {
    const Result<int64_t> found = order.outer(id, width_axes, "--prediction");
    return found.ok() ? *found : 0;
  };
  spec.outer = known(prediction, 1);
  if (graph.value(labels).kind != ValueKind::kInput) spec.labels_outer = known(labels, 0);
}

}  // namespace

Status order_samples(SampleOrder& order, const Graph& graph, LossSpec& spec) {
  if (spec.kind == LossKind::kContrastive) return check_rows(order, graph, spec);
  if (spec.kind == LossKind::kOutput) order_accuracy(order, graph, spec);
  if (spec.kind == LossKind::kOutput || spec.kind == LossKind::kOperator) return {};
  const std::string flag = spec.said.empty() ? "--prediction" : "--loss " + spec.said;
  OFSDP_ASSIGN_OR_RETURN(spec.outer, outer_of(order, graph, spec, flag));
  return {};
}

Result<int64_t> outer_of(SampleOrder& order, const Graph& graph, const LossSpec& spec,
                         const std::string& flag) {
  const ValueId prediction = find_output(graph, spec.prediction);
  if (prediction == 0 || spec.kind == LossKind::kOutput) return spec.outer;
  const bool rows = has_classes(spec.kind) || loss_traits(spec.kind).joins_rows;
  return order.outer(prediction, rows ? 1 : 0, flag);
}

Status order_samples(SampleOrder& order, const Graph& graph, std::span<const LossSpec> specs,
                     MeasureSpec& measure) {
  const ValueId prediction = find_output(graph, measure.prediction);
  if (prediction == 0) return {};
  const LossKind kind = specs[loss_of(specs, measure)].kind;
  const int width_axes = loss_traits(kind).labels == LabelKind::kValues ? 0 : 1;
  OFSDP_ASSIGN_OR_RETURN(measure.outer,
                         order.outer(prediction, width_axes, "--eval-metrics " + measure.metrics));
  return {};
}

std::string label_column(const Graph& graph, const LossSpec& spec) {
  return find_named(graph, graph.inputs, spec.labels) != 0 ? "" : spec.labels;
}

DType label_dtype(const LossSpec& spec) {
  return has_classes(spec.kind) ? DType::kInt64 : DType::kFloat32;
}

namespace {

// Adds the label columns that are no graph inputs: integers if one of the losses is over classes.
void add_label_columns(Graph& graph, std::span<const LossSpec> specs,
                       const std::map<std::string, Shape>& labels) {
  for (const LossSpec& spec : specs) {
    if (label_column(graph, spec).empty()) continue;
    const bool classes = std::ranges::any_of(specs, [&](const LossSpec& other) {
      return other.labels == spec.labels && has_classes(other.kind);
    });
    const DType dtype = classes ? DType::kInt64 : label_dtype(spec);
    const Value column{spec.labels, ValueKind::kInput, {dtype, labels.at(spec.labels)}};
    graph.inputs.push_back(GraphEditor(graph).add_value(column));
  }
}

// Returns the term, a float32 scalar; the file's own loss may have another type.
Result<ValueId> add_term(Graph& graph, const LossSpec& spec) {
  if (spec.kind == LossKind::kOutput) {
    return in_float32(graph, find_output(graph, spec.output), "loss.cast");
  }
  OFSDP_ASSIGN_OR_RETURN(const ValueId prediction,
                         in_float32(graph, find_operand(graph, spec), "loss.prediction.cast"));
  OFSDP_ASSIGN_OR_RETURN(
      const ValueId loss,
      add_loss(graph, spec, prediction, find_named(graph, graph.inputs, spec.labels)));
  return in_float32(graph, loss, "loss.cast");
}

}  // namespace

Result<Graph> attach_losses(const Graph& graph, std::span<const LossSpec> specs,
                            const std::map<std::string, Shape>& labels, bool count_matches) {
  Graph result = graph;
  add_label_columns(result, specs, labels);
  result.terms.resize(specs.size());  // the first may have the weight of the file's backward part
  for (size_t i = 0; i < specs.size(); ++i) {
    LossTerm& term = result.terms[i];
    OFSDP_ASSIGN_OR_RETURN(term.value, add_term(result, specs[i]));
    term.factor = specs[i].weight;
    term.loss = static_cast<int>(i);
    term.numerator = is_numerator(specs[i]);
  }
  if (count_matches) {
    OFSDP_ASSIGN_OR_RETURN(const ValueId prediction,
                           in_float32(result, find_operand(result, specs[0]), "accuracy.scores"));
    OFSDP_RETURN_IF_ERROR(add_matches(result, specs[0], prediction));
  }
  return result;
}

Result<Graph> attach_loss(const Graph& graph, const LossSpec& spec, const Shape& label_shape,
                          bool count_matches) {
  return attach_losses(graph, {&spec, 1}, {{spec.labels, label_shape}}, count_matches);
}

Status measure(Graph& graph, std::span<const LossSpec> specs,
               const std::vector<MeasureSpec>& wanted) {
  for (const MeasureSpec& one : wanted) {
    OFSDP_ASSIGN_OR_RETURN(const Measured made, measured_rows(graph, specs, one));
    graph.measured.push_back(made);
  }
  return {};
}

bool is_numerator(const LossSpec& spec) {
  constexpr uint32_t kBoth = kTakesSmoothing | kTakesClassWeights;
  const bool takes = (loss_traits(spec.kind).takes & kBoth) == kBoth;
  return takes && spec.global_mean && spec.label_smoothing != 0 &&
         std::ranges::find(spec.class_weights, 0.0f) != spec.class_weights.end();
}

LossCount loss_count(const Graph& graph, size_t term) {
  LossCount count;
  if (const auto of = static_cast<size_t>(graph.terms[term].loss); of != term) {
    count = loss_count(graph, of);
    count.class_weights = nullptr;
    count.form = TermForm::kMean;
    return count;
  }
  const Node* node = class_loss_node(graph, term);
  if (node == nullptr) return count;
  const std::string reduction = node->attributes.s("reduction", "mean");
  if (reduction == "none") return count;
  if (reduction == "sum") {
    count.form = graph.terms[term].numerator ? TermForm::kNumerator : TermForm::kSum;
  }
  const ValueId labels = under_views(graph, node->inputs[1]);
  if (graph.value(labels).kind != ValueKind::kInput) return count;
  const bool weighted = node->inputs.size() > 2 && node->inputs[2] != 0;
  if (weighted && graph.value(node->inputs[2]).constant == nullptr) return count;
  count.by_label = true;
  count.labels = graph.value(labels).name;
  count.ignore_index = node->attributes.i("ignore_index", kNoIgnoreIndex);
  count.classes = graph.value(node->inputs[0]).desc.shape[1];
  if (weighted) count.class_weights = graph.value(node->inputs[2]).constant;
  return count;
}

}  // namespace ofsdp::importer
