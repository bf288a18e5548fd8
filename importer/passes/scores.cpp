// The scores before a Softmax, LogSoftmax or Sigmoid at the end of a prediction.
//
//   Softmax     e / sum(e), e = exp(x - max(x))
//   LogSoftmax  log(Softmax); d - log(sum(exp(d))), d = x - max(x); x - logsumexp(x)
//   Sigmoid     1 / (1 + exp(-x))
//   two classes [1 - Sigmoid(x), Sigmoid(x)], which is the Softmax of [0, x]
//
// JAX, Keras and tf2onnx write these pieces, scikit-learn's converter the two classes. The
// subtraction of the maximum may be missing. A reduction may drop its axis if a view restores it.
#include <optional>

#include "importer/graph/graph.h"
#include "importer/passes/loss.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {
namespace {

class EndOfPrediction {
 public:
  explicit EndOfPrediction(const Graph& graph) : graph_(graph), uses_(graph) {}

  // Returns the input of a Softmax or LogSoftmax; 0: the value is made by neither.
  ValueId before_softmax(ValueId id) const {
    const Node* node = maker(id);
    if (node == nullptr) return 0;
    const std::string op = node->op->full_name();
    if (op == "Softmax" || op == "LogSoftmax") return before_whole(*node);
    if (op == "Log") return before_division(node->inputs[0]);
    if (op == "Sub") return before_log_softmax(node->inputs[0], node->inputs[1]);
    return before_division(id);
  }

  ValueId before_sigmoid(ValueId id) const {
    const Node* node = maker(id);
    if (node == nullptr) return 0;
    const std::string op = node->op->full_name();
    if (op == "Sigmoid") return node->inputs[0];
    if (op == "Reciprocal") return negated_exponent(node->inputs[0]);
    const bool inverse = op == "Div" && is_number(node->inputs[0], 1);
    return inverse ? negated_exponent(node->inputs[1]) : 0;
  }

  // Returns x for two classes, [1 - Sigmoid(x), Sigmoid(x)] over the last axis; else 0.
  ValueId before_two_classes(ValueId id) const {
    const Node* both = made_by(id, "Concat");
    if (both == nullptr || both->inputs.size() != 2) return 0;
    const int64_t last = shape(id).rank() - 1, axis = both->attributes.i("axis", 0);
    const Node* rest = made_by(both->inputs[0], "Sub");
    const ValueId one = both->inputs[1];
    const bool fits = (axis == -1 || axis == last) && shape(one)[static_cast<int>(last)] == 1 &&
                      rest != nullptr && rest->inputs[1] == one && is_number(rest->inputs[0], 1);
    return fits ? before_sigmoid(under_copies(one)) : 0;
  }

  // Returns the value under views and casts that keep the columns. `one`: a value of one axis has
  // one column.
  ValueId under_ends(ValueId id, bool one) const {
    while (const Node* node = maker(id)) {
      const bool cast = node->op->full_name() == "Cast" && is_floating(dtype(node->inputs[0]));
      const bool moves = cast || is_view(*node);
      if (!moves || columns(node->inputs[0], one) != columns(id, one)) break;
      id = node->inputs[0];
    }
    return id;
  }

  // Returns the value under views that change nothing.
  ValueId under_copies(ValueId id) const {
    const Node* node = maker(id);
    while (node != nullptr && is_view(*node) && shape(node->inputs[0]) == shape(id)) {
      id = node->inputs[0];
      node = maker(id);
    }
    return id;
  }

  // Returns the value under views that has the shape of `other`, else the value itself: a Softmax
  // before opset 13 has its rows in one axis.
  ValueId shaped_like(ValueId other, ValueId id) const {
    ValueId under = id;
    while (shape(under) != shape(other)) {
      const Node* node = maker(under);
      if (node == nullptr || !is_view(*node)) return id;
      under = node->inputs[0];
    }
    return under;
  }

  const Node* maker(ValueId id) const {
    const int at = id == 0 ? -1 : uses_.maker(id);
    return at < 0 ? nullptr : &graph_.nodes[static_cast<size_t>(at)];
  }

 private:
  const Shape& shape(ValueId id) const { return graph_.value(id).desc.shape; }
  DType dtype(ValueId id) const { return graph_.value(id).desc.dtype; }

  static bool is_view(const Node& node) {
    return node.op->view || node.op->full_name() == "Identity";
  }

  int64_t columns(ValueId id, bool one) const {
    const int rank = shape(id).rank();
    return rank == 0 || (one && rank == 1) ? 1 : shape(id)[rank - 1];
  }

  const Node* made_by(ValueId id, const char* op) const {
    const Node* node = maker(id);
    return node != nullptr && node->op->full_name() == op ? node : nullptr;
  }

  bool is_number(ValueId id, double expected) const {
    const Value& value = graph_.value(id);
    if (value.constant == nullptr || value.desc.numel() != 1) return false;
    return to_doubles(value.constant->desc, value.constant->bytes.data())[0] == expected;
  }

  ValueId before_whole(const Node& node) const {
    const ValueId x = node.inputs[0];
    const int64_t axis = node.attributes.i("axis", -1);
    return axis == -1 || axis == shape(x).rank() - 1 ? x : 0;
  }

  // Returns the reduced value if `id` has one number for each row of it: made by `op` over the last
  // axis, perhaps repeated over the row.
  ValueId reduced(ValueId id, const char* op) const {
    const ValueId x = under_reduction(id, op);
    if (x == 0 || shape(x).rank() == 0) return 0;
    Shape row = shape(x);
    row[row.rank() - 1] = 1;
    if (shape(id) == row) return x;
    const Node* repeats = made_by(id, "Expand");
    const bool repeated = repeats != nullptr && shape(id) == shape(x);
    return repeated && shape(repeats->inputs[0]) == row ? x : 0;
  }

  // Only the outermost node may repeat elements.
  ValueId under_reduction(ValueId id, const char* op) const {
    while (const Node* node = maker(id)) {
      if (node->op->full_name() == op) return is_over_last(*node) ? node->inputs[0] : 0;
      const std::string name = node->op->full_name();
      if (!is_view(*node) && name != "Expand" && !is_limit(*node)) return 0;
      id = node->inputs[0];
      if (made_by(id, "Expand") != nullptr) return 0;
    }
    return 0;
  }

  // JAX bounds a maximum by -inf.
  bool is_limit(const Node& node) const {
    return node.op->full_name() == "Max" && node.inputs.size() == 2 &&
           graph_.value(node.inputs[1]).constant != nullptr &&
           graph_.value(node.inputs[1]).desc.numel() == 1;
  }

  bool is_over_last(const Node& reduction) const {
    const int64_t last = shape(reduction.inputs[0]).rank() - 1;
    std::vector<int64_t> axes = reduction.attributes.ints("axes");
    if (reduction.inputs.size() > 1 && reduction.inputs[1] != 0) {
      const Constant* given = graph_.value(reduction.inputs[1]).constant.get();
      if (given == nullptr || given->desc.dtype != DType::kInt64) return false;
      axes.clear();
      for (int64_t i = 0; i < given->desc.numel(); ++i) axes.push_back(given->as<int64_t>()[i]);
    }
    return axes.size() == 1 && (axes[0] == -1 || axes[0] == last);
  }

  // Returns the value under views and repetitions.
  ValueId unrepeated(ValueId id) const {
    const Node* node = maker(id);
    while (node != nullptr && (is_view(*node) || node->op->full_name() == "Expand")) {
      id = node->inputs[0];
      node = maker(id);
    }
    return id;
  }

  // Returns x for x - max(x), else the value itself.
  ValueId unshifted(ValueId id) const {
    const Node* shift = made_by(id, "Sub");
    const bool by_most =
        shift != nullptr && reduced(shift->inputs[1], "ReduceMax") == shift->inputs[0];
    return by_most ? shift->inputs[0] : id;
  }

  // e / sum(e)
  ValueId before_division(ValueId id) const {
    const Node* node = maker(id);
    if (node == nullptr) return 0;
    const std::string op = node->op->full_name();
    if (op == "Softmax") return before_whole(*node);
    if (op != "Div" && op != "Mul") return 0;
    for (const size_t at : {size_t{1}, size_t{0}}) {
      ValueId sum = node->inputs[at];
      const Node* inverse = made_by(sum, "Reciprocal");
      if (op == "Mul") sum = inverse == nullptr ? 0 : inverse->inputs[0];
      const ValueId e = node->inputs[1 - at];
      const Node* exponential = made_by(e, "Exp");
      const bool fits = sum != 0 && exponential != nullptr && reduced(sum, "ReduceSum") == e;
      if (fits) return unshifted(exponential->inputs[0]);
      if (op == "Div") break;
    }
    return 0;
  }

  // Returns d if `id` is log(sum(exp(d))) of each row, in the shape of rows.
  ValueId log_sum(ValueId id) const {
    const ValueId logarithm = under_copies(id);
    const Node* log = made_by(logarithm, "Log");
    const ValueId e = log == nullptr ? 0 : reduced(log->inputs[0], "ReduceSum");
    const Node* exponential = e == 0 ? nullptr : made_by(e, "Exp");
    return exponential == nullptr ? 0 : exponential->inputs[0];
  }

  ValueId before_log_softmax(ValueId a, ValueId b) const {
    if (log_sum(b) == a) return unshifted(a);
    if (reduced(b, "ReduceLogSumExp") == a) return a;
    const Node* sum = made_by(under_copies(b), "Add");
    if (sum == nullptr) return 0;
    for (const size_t at : {size_t{0}, size_t{1}}) {
      const ValueId d = log_sum(sum->inputs[at]);
      const bool shifted = d != 0 && d != a && unshifted(d) == a;
      const ValueId most = sum->inputs[1 - at];
      if (!shifted || reduced(most, "ReduceMax") != a) continue;
      if (unrepeated(most) == unrepeated(maker(d)->inputs[1])) return a;
    }
    return 0;
  }

  // Returns x for 1 + exp(-x).
  ValueId negated_exponent(ValueId id) const {
    const Node* sum = made_by(id, "Add");
    if (sum == nullptr) return 0;
    for (const size_t at : {size_t{0}, size_t{1}}) {
      const Node* exponential = made_by(sum->inputs[at], "Exp");
      if (exponential != nullptr && is_number(sum->inputs[1 - at], 1)) {
        return negated(exponential->inputs[0]);
      }
    }
    return 0;
  }

  // Returns x for -x.
  ValueId negated(ValueId id) const {
    const Node* node = maker(id);
    if (node == nullptr) return 0;
    const std::string op = node->op->full_name();
    if (op == "Neg") return node->inputs[0];
    if (op == "Sub") return is_number(node->inputs[0], 0) ? node->inputs[1] : 0;
    if (op != "Mul") return 0;
    if (is_number(node->inputs[1], -1)) return node->inputs[0];
    return is_number(node->inputs[0], -1) ? node->inputs[1] : 0;
  }

  const Graph& graph_;
  const GraphUses uses_;
};

}  // namespace

ScoresBefore scores_before(const Graph& graph, const LossSpec& spec, ValueId prediction) {
  const PredictionKind reads = loss_traits(spec.kind).reads;
  const bool logits = reads == PredictionKind::kLogits;
  if (!logits && reads != PredictionKind::kScores) return {};
  const EndOfPrediction end(graph);
  const ValueId made = end.under_ends(prediction, logits);
  ValueId scores = logits ? end.before_sigmoid(made) : end.before_softmax(made);
  if (const ValueId logit = scores == 0 ? end.before_two_classes(made) : 0; logit != 0) {
    const Value& value = graph.value(logit);
    const bool taken = is_floating(value.desc.dtype) && value.kind == ValueKind::kActivation &&
                       made == end.under_copies(prediction);
    const std::string node = format_text("the two classes '{}'", end.maker(made)->name);
    return taken ? ScoresBefore{logit, node, /*two_classes=*/true} : ScoresBefore();
  }
  if (scores == 0) return {};
  scores = end.under_copies(end.shaped_like(prediction, scores));
  const Value& value = graph.value(scores);
  const bool same = value.desc.shape == graph.value(made).desc.shape ||
                    value.desc.shape == graph.value(prediction).desc.shape;
  if (!same || !is_floating(value.desc.dtype) || value.kind != ValueKind::kActivation) return {};
  const Node& node = *end.maker(made);
  const std::string op = node.op->full_name();
  const char* const form = logits                                          ? "Sigmoid"
                           : op == "Softmax" || op == "Div" || op == "Mul" ? "Softmax"
                                                                           : "LogSoftmax";
  return {scores, format_text("{} '{}'", form, node.name)};
}

}  // namespace ofsdp::importer
