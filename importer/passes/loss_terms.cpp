// The nodes of each loss.
#include <algorithm>
#include <limits>

#include "importer/graph/graph.h"
#include "importer/passes/loss.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

Result<std::pair<ValueId, Attributes>> sequence_rows(Graph& graph, const LossSpec& spec,
                                                     const std::string& name, ValueId prediction,
                                                     ValueId labels, int64_t outer) {
  const TensorDesc& scores = graph.value(prediction).desc;
  const TensorDesc& given = graph.value(labels).desc;
  OFSDP_REJECT_IF(scores.shape.rank() != 3 || given.shape.rank() > 2,
                  "--loss ctc: expected a prediction [batch, time, classes] or [time, batch, "
                  "classes] and labels [batch, places], found '{}' {} and '{}' {}",
                  spec.prediction, scores.text(), spec.labels, given.text());
  OFSDP_ASSIGN_OR_RETURN(const ValueId rows,
                         GraphEditor(graph).add1("ofsdp.CollapseLeading", name, {prediction}));
  return std::pair{rows, Attributes{{"blank", spec.blank},
                                    {"ignore_index", spec.ignore_index},
                                    {"time_first", int64_t{outer > 1 ? 1 : 0}}}};
}

namespace {

// Returns the axes of the labels of a sample, without axes of size 1, as the first `places` axes of
// the prediction. The batch axis is left out.
std::vector<int64_t> sample_axes(const Shape& shape, int places, const LossSpec& spec) {
  std::vector<int64_t> axes;
  int64_t before = 1;
  bool found = false;
  for (int i = 0; i < places; ++i) {
    int64_t size = shape[i];
    const bool here = !found && spec.batch > 0 && size % spec.batch == 0 &&
                      spec.outer % before == 0 && spec.outer * spec.batch <= before * size;
    before *= size;
    if (here) size /= spec.batch;
    found = found || here;
    if (size != 1) axes.push_back(size);
  }
  return axes;
}

// Refuses labels with the right number of elements but on other axes. One axis may stand for
// several.
Status check_label_axes(const Graph& graph, const LossSpec& spec, ValueId prediction,
                        ValueId labels, int width_axes) {
  const Shape& shape = graph.value(prediction).desc.shape;
  const Shape& given = graph.value(labels).desc.shape;
  const auto expected = sample_axes(shape, shape.rank() - width_axes, spec);
  std::vector<int64_t> found;
  for (int i = 1; i < given.rank(); ++i) {
    if (given[i] != 1) found.push_back(given[i]);
  }
  if (spec.batch == 0 || expected.size() != found.size() || expected == found) return {};
  return input_error(
      "labels '{}' {} do not fit the prediction '{}' {}: expected the axes {} of a "
      "sample, found {}",
      spec.labels, graph.value(labels).desc.text(), spec.prediction,
      graph.value(prediction).desc.text(), Shape(expected).text(), Shape(found).text());
}

ValueId add_floats(Graph& graph, const std::string& name, const std::vector<float>& values,
                   const Shape& shape = {}) {
  return GraphEditor(graph).add_constant(name,
                                         make_constant<float>(DType::kFloat32, shape, values));
}

// Returns ln p in float32, at least -100 as in PyTorch's BCELoss. Where p is 0 the gradient is 0.
Result<ValueId> add_clamped_log(Graph& graph, const std::string& name, ValueId p) {
  GraphEditor editor(graph);
  if (graph.value(p).desc.dtype != DType::kFloat32) {
    OFSDP_ASSIGN_OR_RETURN(
        p, editor.add1("Cast", name + ".cast", {p}, {{"to", onnx_number(DType::kFloat32)}}));
  }
  const ValueId least = add_floats(graph, name + ".least", {std::numeric_limits<float>::min()});
  const ValueId lowest = add_floats(graph, name + ".lowest", {-100});
  OFSDP_ASSIGN_OR_RETURN(const ValueId above, editor.add1("Max", name + ".above", {p, least}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId log, editor.add1("Log", name + ".log", {above}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId none, editor.add1("Less", name + ".none", {p, least}));
  return editor.add1("Where", name, {none, lowest, log});
}

// Returns the mean of a value's elements times `factor`; 0 if there are none.
Result<ValueId> add_mean(Graph& graph, ValueId values, double factor) {
  GraphEditor editor(graph);
  const auto n = static_cast<double>(std::max<int64_t>(graph.value(values).desc.numel(), 1));
  const ValueId share = add_floats(graph, "loss.share", {static_cast<float>(factor / n)});
  OFSDP_ASSIGN_OR_RETURN(const ValueId sum, editor.add1("ReduceSum", "loss.sum", {values},
                                                        {{"keepdims", int64_t{0}}}));
  return editor.add1("Mul", "loss", {sum, share});
}

// The mean of |p - t|. Smooth, as PyTorch's smooth_l1_loss has it by default: the mean of half the
// square of a difference below 1, else of |p - t| - 1/2. With m = min(|p - t|, 1) both are
// m (|p - t| - m/2).
Result<ValueId> add_l1_loss(Graph& graph, ValueId p, ValueId t, bool smooth) {
  GraphEditor editor(graph);
  OFSDP_ASSIGN_OR_RETURN(const ValueId apart, editor.add1("Sub", "loss.apart", {p, t}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId far, editor.add1("Abs", "loss.far", {apart}));
  if (!smooth) return add_mean(graph, far, 1);
  const ValueId one = add_floats(graph, "loss.one", {1}),
                half = add_floats(graph, "loss.half", {.5});
  OFSDP_ASSIGN_OR_RETURN(const ValueId near, editor.add1("Min", "loss.near", {far, one}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId halved, editor.add1("Mul", "loss.halved", {near, half}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId line, editor.add1("Sub", "loss.line", {far, halved}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId curve, editor.add1("Mul", "loss.curve", {near, line}));
  return add_mean(graph, curve, 1);
}

// The mean of -t ln p - (1 - t) ln (1 - p).
Result<ValueId> add_bce_loss(Graph& graph, ValueId p, ValueId t) {
  GraphEditor editor(graph);
  const ValueId one = add_floats(graph, "loss.one", {1});
  OFSDP_ASSIGN_OR_RETURN(const ValueId log, add_clamped_log(graph, "loss.log", p));
  OFSDP_ASSIGN_OR_RETURN(const ValueId rest, editor.add1("Sub", "loss.rest", {one, p}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId log_rest, add_clamped_log(graph, "loss.log_rest", rest));
  OFSDP_ASSIGN_OR_RETURN(const ValueId hit, editor.add1("Mul", "loss.hit", {t, log}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId other, editor.add1("Sub", "loss.other", {one, t}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId miss, editor.add1("Mul", "loss.miss", {other, log_rest}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId both, editor.add1("Add", "loss.both", {hit, miss}));
  return add_mean(graph, both, -1);
}

// The mean of (1 - t) x + (1 + (w - 1) t) softplus(-x), with a weight w for each column.
Result<ValueId> add_weighted_bce_loss(Graph& graph, const LossSpec& spec, ValueId x, ValueId t) {
  GraphEditor editor(graph);
  std::vector<float> more = spec.positive_weights;
  for (float& weight : more) weight -= 1;
  const auto columns = static_cast<int64_t>(more.size());
  const int64_t width = graph.value(x).desc.shape[1];
  OFSDP_REJECT_IF(columns != 1 && columns != width,
                  "--pos-weight: expected 1 number or {}, one for each column of '{}', found {}",
                  width, spec.prediction, columns);
  const ValueId one = add_floats(graph, "loss.one", {1});
  const ValueId extra = add_floats(graph, "loss.pos_weight", more, Shape{columns});
  OFSDP_ASSIGN_OR_RETURN(const ValueId other, editor.add1("Sub", "loss.other", {one, t}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId line, editor.add1("Mul", "loss.line", {other, x}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId opposite, editor.add1("Neg", "loss.opposite", {x}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId soft, editor.add1("Softplus", "loss.soft", {opposite}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId scaled, editor.add1("Mul", "loss.scaled", {t, extra}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId factor, editor.add1("Add", "loss.factor", {one, scaled}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId curve, editor.add1("Mul", "loss.curve", {factor, soft}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId both, editor.add1("Add", "loss.both", {line, curve}));
  return add_mean(graph, both, 1);
}

Result<ValueId> add_class_loss(Graph& graph, const LossSpec& spec, ValueId prediction,
                               ValueId labels) {
  GraphEditor editor(graph);
  OFSDP_ASSIGN_OR_RETURN(ValueId rows,
                         editor.add1("ofsdp.CollapseLeading", "loss.prediction", {prediction}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId in_order,
                         reordered(graph, labels, spec.batch, 1, spec.outer));
  OFSDP_ASSIGN_OR_RETURN(const ValueId flat,
                         editor.add1("ofsdp.CollapseAll", "loss.labels", {in_order}));
  const Shape &scores = graph.value(rows).desc.shape, &given = graph.value(flat).desc.shape;
  const bool one_hot = scores[1] > 1 && given[0] == scores[0] * scores[1];
  OFSDP_REJECT_IF(
      scores[0] != given[0],
      "labels '{}' {} do not fit the prediction '{}' {}: expected {} labels, found {}{}",
      spec.labels, graph.value(labels).desc.text(), spec.prediction,
      graph.value(prediction).desc.text(), scores[0], given[0],
      one_hot ? "; one-hot? give class numbers, labels.argmax(-1)" : "");
  OFSDP_RETURN_IF_ERROR(check_label_axes(graph, spec, prediction, labels, 1));
  Attributes attributes{{"reduction", std::string(is_numerator(spec) ? "sum" : "mean")},
                        {"ignore_index", spec.ignore_index}};
  const LossTraits& traits = loss_traits(spec.kind);
  if (spec.label_smoothing != 0 && (traits.takes & kTakesSmoothing) != 0)
    attributes.set("label_smoothing", static_cast<float>(spec.label_smoothing));
  if (traits.reads == PredictionKind::kProbabilities) {
    OFSDP_ASSIGN_OR_RETURN(rows, add_clamped_log(graph, "loss.log", rows));
  }
  std::vector<ValueId> operands{rows, flat};
  if (!spec.class_weights.empty() && (traits.takes & kTakesClassWeights) != 0) {
    const int64_t classes = graph.value(rows).desc.shape[1];
    const auto given = static_cast<int64_t>(spec.class_weights.size());
    OFSDP_REJECT_IF(given != classes,
                    "--class-weights: expected {} numbers, one for each class of '{}', found {}",
                    classes, spec.prediction, given);
    operands.push_back(add_floats(graph, "loss.class_weights", spec.class_weights, Shape{given}));
  }
  return editor.add1(traits.op, "loss", operands, attributes);
}

Result<ValueId> add_value_loss(Graph& graph, const LossSpec& spec, ValueId prediction,
                               ValueId labels) {
  GraphEditor editor(graph);
  OFSDP_REJECT_IF(graph.value(prediction).desc.numel() != graph.value(labels).desc.numel(),
                  "labels '{}' {} do not fit the prediction '{}' {}", spec.labels,
                  graph.value(labels).desc.text(), spec.prediction,
                  graph.value(prediction).desc.text());
  OFSDP_RETURN_IF_ERROR(check_label_axes(graph, spec, prediction, labels, 0));
  OFSDP_ASSIGN_OR_RETURN(const ValueId in_order,
                         reordered(graph, labels, spec.batch, 1, spec.outer));
  OFSDP_ASSIGN_OR_RETURN(ValueId flat, editor.add1("ofsdp.CollapseAll", "loss.labels", {in_order}));
  if (is_integer(graph.value(flat).desc.dtype)) {  // a loss over classes reads the column, too
    const int64_t to = onnx_number(graph.value(prediction).desc.dtype);
    OFSDP_ASSIGN_OR_RETURN(flat, editor.add1("Cast", "loss.labels.cast", {flat}, {{"to", to}}));
  }
  if (spec.kind == LossKind::kBceWithLogits && !spec.positive_weights.empty()) {
    OFSDP_ASSIGN_OR_RETURN(const ValueId rows,
                           editor.add1("ofsdp.CollapseLeading", "loss.prediction", {prediction}));
    const Shape& shape = graph.value(rows).desc.shape;
    const ValueId axes = editor.add_constant(
        "loss.axes", make_constant<int64_t>(DType::kInt64, Shape{2}, shape.axes()));
    OFSDP_ASSIGN_OR_RETURN(const ValueId targets,
                           editor.add1("Reshape", "loss.labels.rows", {flat, axes}));
    return add_weighted_bce_loss(graph, spec, rows, targets);
  }
  OFSDP_ASSIGN_OR_RETURN(const ValueId values,
                         editor.add1("ofsdp.CollapseAll", "loss.prediction", {prediction}));
  if (spec.kind == LossKind::kBce) return add_bce_loss(graph, values, flat);
  const bool smooth = spec.kind == LossKind::kSmoothL1;
  if (smooth || spec.kind == LossKind::kL1) return add_l1_loss(graph, values, flat, smooth);
  return editor.add1(loss_traits(spec.kind).op, "loss", {values, flat});
}

// The loss of a plug-in takes prediction and labels unchanged.
Result<ValueId> add_operator_loss(Graph& graph, const LossSpec& spec, ValueId prediction,
                                  ValueId labels) {
  const size_t dot = spec.output.rfind('.');
  const std::string domain = dot == std::string::npos ? "" : spec.output.substr(0, dot);
  OFSDP_REJECT_IF(graph.registry->find(domain, spec.output.substr(dot + 1)) == nullptr,
                  "--loss plugin:{}: no --plugin offers that operator", spec.output);
  GraphEditor editor(graph);
  OFSDP_ASSIGN_OR_RETURN(const ValueId loss,
                         editor.add1(spec.output, "loss", {prediction, labels}));
  if (is_scalar_float(graph.value(loss))) return loss;
  return input_error("--loss plugin:{}: expected a float scalar, found {}", spec.output,
                     graph.value(loss).desc.text());
}

// Adds the rows of an output divided by their norms, and the rows of all ranks (or none), right
// after the node that makes the output: ranks exchange them while the rest is computed.
Result<std::pair<ValueId, ValueId>> add_unit_rows(Graph& graph, const LossSpec& spec,
                                                  const std::string& output) {
  const ValueId id = find_output(graph, output);
  const auto begin = static_cast<std::ptrdiff_t>(graph.nodes.size());
  GraphEditor editor(graph);
  OFSDP_ASSIGN_OR_RETURN(const ValueId rows,
                         editor.add1("ofsdp.UnitRows", "loss." + output + ".unit", {id}));
  ValueId joined = 0;
  if (spec.ranks.several()) {
    const int64_t here = graph.value(rows).desc.shape[0];
    const int64_t most = (here * std::max(spec.ranks.samples, spec.batch) + spec.batch - 1) /
                         std::max<int64_t>(spec.batch, 1);
    OFSDP_ASSIGN_OR_RETURN(joined, editor.add1("ofsdp.JoinRows", "loss." + output + ".rows", {rows},
                                               spec.ranks.join(most)));
  }
  const auto made = std::ranges::find_if(graph.nodes, [id](const Node& node) {
    return std::ranges::find(node.outputs, id) != node.outputs.end();
  });
  if (made - graph.nodes.begin() < begin) {
    std::rotate(made + 1, graph.nodes.begin() + begin, graph.nodes.end());
  }
  return std::pair{rows, joined};
}

Result<ValueId> add_contrastive_loss(Graph& graph, const LossSpec& spec) {
  OFSDP_ASSIGN_OR_RETURN(const auto a, add_unit_rows(graph, spec, spec.output));
  OFSDP_ASSIGN_OR_RETURN(const auto b, add_unit_rows(graph, spec, spec.other));
  std::vector<ValueId> inputs{a.first, b.first};
  Attributes attributes{{"temperature", static_cast<float>(spec.temperature)}};
  if (a.second != 0) {
    inputs.insert(inputs.end(), {a.second, b.second});
    for (const auto& [name, value] : maker_of(graph, a.second)->attributes.all()) {
      attributes.set(name, value);
    }
  }
  return GraphEditor(graph).add1("ofsdp.ContrastiveLoss", "loss", inputs, attributes);
}

Result<ValueId> add_ctc_loss(Graph& graph, const LossSpec& spec, ValueId prediction,
                             ValueId labels) {
  OFSDP_ASSIGN_OR_RETURN(const auto made, sequence_rows(graph, spec, "loss.prediction", prediction,
                                                        labels, spec.outer));
  return GraphEditor(graph).add1(loss_traits(spec.kind).op, "loss", {made.first, labels},
                                 made.second);
}

}  // namespace

Result<ValueId> add_loss(Graph& graph, const LossSpec& spec, ValueId prediction, ValueId labels) {
  if (spec.kind == LossKind::kCtc) return add_ctc_loss(graph, spec, prediction, labels);
  if (spec.kind == LossKind::kContrastive) return add_contrastive_loss(graph, spec);
  if (spec.kind == LossKind::kOperator) return add_operator_loss(graph, spec, prediction, labels);
  return loss_traits(spec.kind).labels == LabelKind::kClasses
             ? add_class_loss(graph, spec, prediction, labels)
             : add_value_loss(graph, spec, prediction, labels);
}

}  // namespace ofsdp::importer
