#include "importer/passes/trained_set.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "importer/graph/graph.h"
#include "importer/passes/untrained_rules.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::importer {
namespace {

bool glob(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// Returns the initializers that one pattern names.
std::set<std::string> matches(const Graph& graph, const std::string& pattern) {
  std::set<std::string> names;
  for (const std::string& name : graph.initializers) {
    if (name == pattern) return {name};
    if (glob(pattern, name)) names.insert(name);
  }
  return names;
}

Result<std::set<std::string>> all_matches(const Graph& graph, const char* flag,
                                          const std::vector<std::string>& patterns) {
  std::set<std::string> names;
  for (const std::string& pattern : patterns) {
    const auto found = matches(graph, pattern);
    OFSDP_REJECT_IF(found.empty(), "{} {}: matches no initializer of {}", flag, pattern,
                    graph.file);
    names.insert(found.begin(), found.end());
  }
  return names;
}

bool is_output(const Graph& graph, ValueId id) {
  return std::ranges::find(graph.outputs, id) != graph.outputs.end();
}

// Scales and zero points that FakeQuantize nodes read.
struct ScaleUses {
  explicit ScaleUses(const Graph& graph) {
    for (const Node& node : graph.nodes) {
      if (!node.op->fake_quantizes) continue;
      scales.insert(node.inputs[1]);
      if (node.inputs.size() > 2) zero_points.insert(node.inputs[2]);
      if (node.attributes.i("weight", 0) != 0) weights[node.inputs[1]].push_back(node.inputs[0]);
    }
  }

  std::set<ValueId> scales, zero_points;
  std::map<ValueId, std::vector<ValueId>> weights;  // weights by scale
};

bool is_batch_norm(const Node& node) {
  return node.op->full_name() == "BatchNormalization" && node.inputs.size() > 4;
}

bool returns_its_input(const Graph& graph, const Node& node) {
  if (is_operator(node, "Identity")) return true;
  return is_operator(node, "Cast") && dtype_from_onnx_number(node.attributes.i("to", 0)) ==
                                          graph.value(node.inputs[0]).desc.dtype;
}

// Returns the value from which Identity nodes, and Casts between equal types, make `id`.
ValueId source_of(const Graph& graph, const GraphUses& uses, ValueId id) {
  for (int n = uses.maker(id); n >= 0; n = uses.maker(id)) {
    const Node& node = graph.nodes[static_cast<size_t>(n)];
    if (!returns_its_input(graph, node)) break;
    id = node.inputs[0];
  }
  return id;
}

void read_statistics_directly(Graph& graph) {
  const GraphUses uses(graph);
  for (Node& node : graph.nodes) {
    if (!is_batch_norm(node)) continue;
    Node made = node;
    for (const size_t i : {size_t{3}, size_t{4}}) {
      made.inputs[i] = source_of(graph, uses, made.inputs[i]);
    }
    GraphEditor::change_symbolic(node, std::move(made));
  }
}

// Readers of a value, also through views and casts.
struct StatisticReaders {
  const Node* norm = nullptr;   // reads it as running statistics; one in training mode comes first
  bool changed = false;         // between: the norm in training mode cannot update the initializer
  const Node* other = nullptr;  // reads it as something else
};

void collect_readers(const Graph& graph, const GraphUses& uses, ValueId value, bool changed,
                     StatisticReaders& found) {
  for (const size_t reader : uses.readers(value)) {
    const Node& node = graph.nodes[reader];
    if (is_batch_norm(node)) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] != value) continue;
        const bool trains = node.attributes.i("training_mode", 0) != 0;
        if (i < 3) found.other = &node;
        if (i < 3) continue;
        if (found.norm == nullptr || trains) found.norm = &node;
        found.changed = found.changed || (trains && changed);
      }
    } else if (node.op->view || is_operator(node, "Cast")) {
      const bool moves = !is_operator(node, "Identity");
      collect_readers(graph, uses, node.outputs[0], changed || moves, found);
    } else {
      found.other = &node;
    }
  }
}

StatisticReaders statistic_readers(const Graph& graph, const GraphUses& uses, ValueId value) {
  StatisticReaders found;
  collect_readers(graph, uses, value, false, found);
  return found;
}

// Returns the reason why the readers forbid training it, or "".
std::string why_not_by_use(const Graph& graph, const GraphUses& uses, const Parameter& p) {
  for (const size_t reader : uses.readers(p.value)) {
    const Node& node = graph.nodes[reader];
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] != p.value) continue;
      if (has_operand(node.op->stored_inputs, i)) return "read as it is stored";
      if (has_operand(node.op->constant_inputs, i)) return "read while planning";
    }
  }
  return statistic_readers(graph, uses, p.value).norm != nullptr ? kRunningStatistics : "";
}

// `trained`: the run would train it as a weight.
Status check_statistic(const Graph& graph, const GraphUses& uses, const Parameter& p,
                       bool trained) {
  const StatisticReaders found = statistic_readers(graph, uses, p.value);
  if (found.norm == nullptr) return {};
  const bool updated = found.norm->attributes.i("training_mode", 0) != 0;
  OFSDP_REJECT_IF(found.other != nullptr && (trained || updated),
                  "{}: '{}' is a running statistic of '{}' and a weight of '{}', which an exporter "
                  "has merged since the values were equal: --untie auto gives each its own",
                  graph.file, p.name, found.norm->name, found.other->name);
  OFSDP_REJECT_IF(found.changed,
                  "{}: '{}' is a running statistic of '{}', which reads it through other nodes and "
                  "so cannot update it: --freeze '{}' keeps it",
                  graph.file, p.name, found.norm->name, p.name);
  return {};
}

void freeze(Graph& graph, Parameter& p, std::string reason) {
  p.trained = false;
  p.reason = std::move(reason);
  Value& value = graph.value(p.value);
  if (p.reason == kRunningStatistics) {
    value.constant = nullptr;  // the value will change
  } else if (value.constant != nullptr) {
    value.kind = ValueKind::kConstant;
  }
}

// If a weight is frozen, so is the scale: the file's integers keep their meaning.
void freeze_scales_of_frozen(Graph& graph, const ScaleUses& uses) {
  std::map<ValueId, bool> trained;
  for (const Parameter& p : graph.parameters) trained[p.value] = p.trained;
  for (Parameter& p : graph.parameters) {
    const auto found = uses.weights.find(p.value);
    if (!p.trained || found == uses.weights.end()) continue;
    const bool stays = std::ranges::any_of(found->second, [&](ValueId w) { return !trained[w]; });
    if (stays) freeze(graph, p, "the scale of a frozen weight");
  }
}

void mark_learned(Graph& graph) {
  for (Node& node : graph.nodes) {
    if (!node.op->fake_quantizes) continue;
    Node made = node;
    made.attributes.set("learned", int64_t{1});
    GraphEditor::change_symbolic(node, std::move(made));
  }
}

// The checkpoint has the trained values, so none remains a constant from the file.
Graph choose_saved(const Graph& graph, const std::set<std::string>& saved) {
  Graph result = graph;
  read_statistics_directly(result);
  const GraphUses uses(result);
  const ScaleUses quantized(result);
  bool learned = false;
  for (Parameter& p : result.parameters) {
    p.trained = saved.contains(p.name);
    const std::string use = why_not_by_use(result, uses, p);
    if (p.trained) {
      result.value(p.value).constant = nullptr;
      learned = learned || quantized.scales.contains(p.value);
    } else {
      freeze(result, p, use.empty() ? "not trained in the checkpoint" : use);
    }
  }
  if (learned) mark_learned(result);
  return result;
}

}  // namespace

Result<Graph> choose_candidates(const Graph& graph, const TrainedRules& rules) {
  if (!rules.saved.empty()) return choose_saved(graph, rules.saved);
  Graph result = graph;
  read_statistics_directly(result);
  OFSDP_ASSIGN_OR_RETURN(const auto frozen, all_matches(graph, "--freeze", rules.freeze));
  OFSDP_ASSIGN_OR_RETURN(const auto named, all_matches(graph, "--train", rules.train));
  const GraphUses uses(result);
  const ScaleUses quantized(result);
  for (Parameter& p : result.parameters) {
    std::string reason = why_not_by_use(result, uses, p);
    if (rules.changes_values && reason == kRunningStatistics && !frozen.contains(p.name)) {
      const bool trained = rules.train.empty()
                               ? why_not_by_rule(result, uses, p, rules.added).empty()
                               : named.contains(p.name);
      OFSDP_RETURN_IF_ERROR(check_statistic(result, uses, p, trained));
    }
    const bool scale = quantized.scales.contains(p.value);
    if (quantized.zero_points.contains(p.value)) {
      reason = "zero points";
    } else if (reason.empty() && uses.readers(p.value).empty() && !is_output(result, p.value)) {
      reason = kUnread;
    } else if (scale && !rules.learned_scales) {
      reason = "scales (--qat-scales fixed)";
    } else if (frozen.contains(p.name)) {
      reason = "--freeze";
    } else if (reason.empty() && !rules.train.empty()) {
      reason = named.contains(p.name) ? "" : rules.otherwise;
    } else if (reason.empty() && rules.frozen.contains(p.name)) {
      reason = kFrozenByModule;
    } else if (reason.empty() && !scale) {
      reason = why_not_by_rule(result, uses, p, rules.added);
    }
    p.trained = reason.empty();
    if (!p.trained) freeze(result, p, reason);
  }
  if (!rules.learned_scales) return result;
  freeze_scales_of_frozen(result, quantized);
  mark_learned(result);
  return result;
}

Graph choose_given(const Graph& graph, const std::set<std::string>& trained) {
  Graph result = graph;
  read_statistics_directly(result);
  const GraphUses uses(result);
  for (Parameter& p : result.parameters) {
    p.trained = trained.contains(p.name);
    const std::string use = why_not_by_use(result, uses, p);
    if (!p.trained) freeze(result, p, use.empty() ? "frozen in the file" : use);
  }
  return result;
}

Result<Graph> keep_reached(const Graph& graph, const Graph& differentiated) {
  Graph result = graph;
  bool any = false, candidates = false;
  for (size_t i = 0; i < result.parameters.size(); ++i) {
    Parameter& p = result.parameters[i];
    if (!p.trained) continue;
    candidates = true;
    if (differentiated.parameters[i].gradient == 0) {
      freeze(result, p, kUnreached);
      continue;
    }
    any = true;
    result.value(p.value).constant = nullptr;  // the value will change
  }
  if (any) return result;
  OFSDP_REJECT_IF(candidates, "{}: the loss '{}' reaches no trainable initializer", graph.file,
                  differentiated.value(differentiated.terms[0].value).name);
  return input_error("{}: nothing to train: of {} floating-point initializers none is trainable",
                     graph.file,
                     std::ranges::count(graph.parameters, false, &Parameter::of_teacher));
}

std::string trained_table(const Graph& graph) {
  constexpr size_t kMaxOfAName = 56;
  size_t widest = 0;
  for (const Parameter& p : graph.parameters) {
    widest = std::max(widest, std::min(escaped(p.name).size(), kMaxOfAName));
  }
  std::string out;
  for (const Parameter& p : graph.parameters) {
    if (p.of_teacher) continue;
    const Shape& shape = graph.value(p.value).desc.shape;
    std::string name = escaped(p.name);
    name.resize(std::max(name.size(), widest), ' ');
    out +=
        format_text("{:<7} {}  {:<18} {:>13}{}\n", p.trained ? "train" : "keep", name, shape.text(),
                    readable_count(shape.numel()), p.trained ? "" : "  (" + p.reason + ")");
  }
  return out;
}

namespace {

// A weight's reader: a product, or a Gather for rows.
struct Reader {
  size_t node = 0;
  bool transposed = false;  // it reads W^T
};

// A weight that can keep its type, with all readers.
struct Held {
  size_t parameter = 0;
  int fake_quantize = -1;  // node that made it float; -1: a 16-bit float
  std::vector<Reader> readers = {};
  std::vector<size_t> between = {};  // nodes that only pass it on
};

bool is_float_cast(const Node& node) {
  return is_operator(node, "Cast") &&
         dtype_from_onnx_number(node.attributes.i("to", 0)) == DType::kFloat32;
}

bool swaps_two(const Node& node) {
  const auto perm = node.attributes.ints("perm");
  return is_operator(node, "Transpose") && (perm.empty() || perm == std::vector<int64_t>{1, 0});
}

class Holder {
 public:
  Holder(const Graph& graph, const OnnxFile& file)
      : graph_(graph),
        file_(file),
        uses_(graph),
        dropped_(graph.nodes.size()),
        made_(graph.nodes.size()),
        outputs_(graph.outputs.begin(), graph.outputs.end()) {}

  Graph run() {
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      if (const std::optional<Held> held = find(i)) hold(*held);
    }
    hold_scales();
    std::vector<Node> nodes;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      for (Node& node : made_[n]) nodes.push_back(std::move(node));
      if (!dropped_[n]) nodes.push_back(std::move(graph_.nodes[n]));
    }
    graph_.nodes = std::move(nodes);
    return std::move(graph_);
  }

 private:
  const Initializer& source(const Parameter& p) const {
    return file_.initializers()[static_cast<size_t>(p.initializer)];
  }
  const Node& node(size_t i) const { return graph_.nodes[i]; }

  bool is_free(const Parameter& p) const {
    const bool carried = std::ranges::any_of(
        graph_.carried, [&](const Carried& c) { return &graph_.parameters[at(c)] == &p; });
    return !p.trained && !p.raw && !carried && graph_.value(p.value).constant == nullptr &&
           !outputs_.contains(p.value) && file_.has_raw(source(p));
  }
  static size_t at(const Carried& c) { return static_cast<size_t>(c.parameter); }

  std::optional<Held> find(size_t index) const {
    const Parameter& p = graph_.parameters[index];
    const Initializer& weight = source(p);
    const bool half = is_16_bit_float(weight.dtype);
    const Quantization* q = weight.quantization.get();
    const bool few_bits = q != nullptr && q->rounds && q->bits() <= 8;
    if (!is_free(p) || weight.shape.rank() < 1 || !(half || few_bits)) return {};
    Held held{index};
    ValueId value = p.value;
    if (few_bits) {
      const auto& readers = uses_.readers(value);
      if (readers.size() != 1 || !node(readers[0]).op->fake_quantizes) return {};
      held.fake_quantize = static_cast<int>(readers[0]);
      value = node(readers[0]).outputs[0];
    }
    if (!collect(value, weight.shape.rank(), false, held) || held.readers.empty()) return {};
    return held;
  }

  // Returns false if a node that needs floats reads the value.
  bool collect(ValueId value, int rank, bool transposed, Held& held) const {
    if (outputs_.contains(value)) return false;
    for (const size_t reader : uses_.readers(value)) {
      const Node& node = this->node(reader);
      const bool turns = rank == 2 && swaps_two(node);
      if (is_operator(node, "Identity") || is_float_cast(node) || turns) {
        held.between.push_back(reader);
        if (!collect(node.outputs[0], rank, transposed != turns, held)) return false;
      } else if (is_product(node, value) && rank == 2) {
        held.readers.push_back({reader, transposed != transposes(node)});
      } else if (takes_rows(node, value) && !transposed && held.fake_quantize < 0) {
        held.readers.push_back({reader});
      } else {
        return false;
      }
    }
    return true;
  }

  // Returns whether the product reads the value as the right operand only.
  static bool is_product(const Node& node, ValueId value) {
    const bool known =
        is_operator(node, "MatMul") || is_operator(node, "Gemm") ||
        (is_operator(node, "com.microsoft.FusedMatMul") && node.attributes.i("transA", 0) == 0 &&
         node.attributes.i("transBatchA", 0) == 0 && node.attributes.i("transBatchB", 0) == 0);
    return known && node.inputs.size() > 1 && node.inputs[1] == value &&
           std::ranges::count(node.inputs, value) == 1;
  }
  static bool transposes(const Node& node) { return node.attributes.i("transB", 0) != 0; }

  static bool takes_rows(const Node& node, ValueId value) {
    return is_operator(node, "Gather") && node.inputs[0] == value;
  }

  void hold(const Held& held) {
    Parameter& p = graph_.parameters[held.parameter];
    p.raw = true;
    graph_.value(p.value).desc = source(p).raw_desc();
    for (const size_t n : held.between) dropped_[n] = true;
    if (held.fake_quantize >= 0) dropped_[static_cast<size_t>(held.fake_quantize)] = true;
    for (const Reader& reader : held.readers) {
      dropped_[reader.node] = true;
      if (is_operator(node(reader.node), "Gather")) {
        take_rows(held, reader.node);
      } else {
        multiply(held, reader);
      }
    }
  }

  ValueId fresh(const std::string& name) {
    return GraphEditor(graph_).add_value(
        {name, ValueKind::kActivation, {DType::kFloat32, {}}, {}, {}});
  }

  void add(size_t place, const char* op, const std::string& name, Attributes attributes,
           std::vector<ValueId> inputs, ValueId output) {
    made_[place].push_back(
        {&graph_.registry->get(op), name, std::move(attributes), std::move(inputs), {output}});
  }

  void take_rows(const Held& held, size_t place) {
    const Node gather = node(place);
    const ValueId rows = fresh(gather.name + ".rows");
    const Parameter& p = graph_.parameters[held.parameter];
    add(place, "Gather", gather.name, gather.attributes, {p.value, gather.inputs[1]}, rows);
    graph_.value(rows).desc.dtype = graph_.value(p.value).desc.dtype;
    add(place, "Cast", gather.name + ".float", {{"to", onnx_number(DType::kFloat32)}}, {rows},
        gather.outputs[0]);
  }

  Attributes form_of(const Held& held, bool by_rows) const {
    const Parameter& p = graph_.parameters[held.parameter];
    const Initializer& weight = source(p);
    Attributes form{{"rows", weight.shape[0]},
                    {"columns", weight.shape[1]},
                    {"by_rows", int64_t{by_rows ? 1 : 0}}};
    const Quantization* q = weight.quantization.get();
    form.set("type", q != nullptr ? int64_t{q->onnx_type} : onnx_number(weight.dtype));
    if (q == nullptr) return form;
    form.set("axis", q->axis);
    if (q->block_size != 0) form.set("block_size", q->block_size);
    return form;
  }

  // Computes alpha op(A) W + beta C.
  void multiply(const Held& held, const Reader& reader) {
    const Node product = node(reader.node);
    const Attributes& a = product.attributes;
    const bool gemm = is_operator(product, "Gemm");
    ValueId x = product.inputs[0];
    if (gemm && a.i("transA", 0) != 0) {
      const ValueId turned = fresh(product.name + ".turned");
      add(reader.node, "Transpose", product.name + ".turn", {{"perm", std::vector<int64_t>{1, 0}}},
          {x}, turned);
      x = turned;
    }
    std::vector<ValueId> operands{x, graph_.parameters[held.parameter].value};
    if (held.fake_quantize >= 0) {
      const Node& fake = node(static_cast<size_t>(held.fake_quantize));
      operands.insert(operands.end(), fake.inputs.begin() + 1, fake.inputs.end());
      while (operands.back() == 0) operands.pop_back();
      scales_.insert(fake.inputs[1]);
    }
    const ValueId addend = gemm && product.inputs.size() > 2 ? product.inputs[2] : 0;
    const float alpha = a.f("alpha", 1), beta = a.f("beta", 1);
    const bool added = addend != 0 && beta != 0;
    ValueId result = alpha == 1 && !added ? product.outputs[0] : fresh(product.name + ".stored");
    add(reader.node, "ofsdp.StoredMatMul", product.name, form_of(held, reader.transposed),
        std::move(operands), result);
    if (alpha != 1) {
      const ValueId to = added ? fresh(product.name + ".alpha") : product.outputs[0];
      result = times(reader.node, product.name + ".scale", result, alpha, to);
    }
    if (!added) return;
    const ValueId term = beta == 1 ? addend
                                   : times(reader.node, product.name + ".beta", addend, beta,
                                           fresh(product.name + ".addend"));
    add(reader.node, "Add", product.name + ".sum", {}, {result, term}, product.outputs[0]);
  }

  ValueId times(size_t place, const std::string& name, ValueId value, float factor, ValueId to) {
    const float factors[] = {factor};
    const ValueId constant = GraphEditor(graph_).add_constant(
        name + ".factor", make_constant<float>(DType::kFloat32, Shape{}, factors));
    add(place, "Mul", name, {}, {value, constant}, to);
    return to;
  }

  // Scales that now only such products read keep their type.
  void hold_scales() {
    for (Parameter& p : graph_.parameters) {
      if (!scales_.contains(p.value) || !is_free(p) || !is_32_or_16_bit_float(source(p).dtype))
        continue;
      const auto& readers = uses_.readers(p.value);
      if (!std::ranges::all_of(readers, [&](size_t n) { return dropped_[n]; })) continue;
      p.raw = true;
      graph_.value(p.value).desc = source(p).raw_desc();
    }
  }

  Graph graph_;
  const OnnxFile& file_;
  const GraphUses uses_;
  std::vector<bool> dropped_;
  std::vector<std::vector<Node>> made_;  // nodes that replace a node
  std::set<ValueId> outputs_;
  std::set<ValueId> scales_;
};

}  // namespace

Graph hold_frozen(const Graph& graph, const OnnxFile& file) { return Holder(graph, file).run(); }

}  // namespace ofsdp::importer
