#include "importer/passes/frozen_weights.h"

#include <algorithm>
#include <optional>
#include <set>

#include "importer/graph/graph_uses.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::importer {
namespace {

// A reader of a weight: a product, or a Gather of rows.
struct Reader {
  size_t node = 0;
  bool transposed = false;  // it reads W^T
};

// All about a weight that can stay.
struct Held {
  size_t parameter = 0;
  int fake_quantize = -1;  // the node that made it float; -1: a 16-bit float
  std::vector<Reader> readers = {};
  std::vector<size_t> between = {};  // nodes that only pass it on
};

bool is_float_cast(const Node& node) {
  return is_operator(node, "Cast") &&
         dtype_of_number(node.attributes.i("to", 0)) == DType::kFloat32;
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
      if (readers.size() != 1 || node(readers[0]).op->full_name() != "ofsdp.FakeQuantize")
        return {};
      held.fake_quantize = static_cast<int>(readers[0]);
      value = node(readers[0]).outputs[0];
    }
    if (!collect(value, weight.shape.rank(), false, held) || held.readers.empty()) return {};
    return held;
  }

  // False: something reads it that needs floats.
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

  // Its right operand, and nothing else.
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
    add(place, "Cast", gather.name + ".float", {{"to", number_of_dtype(DType::kFloat32)}}, {rows},
        gather.outputs[0]);
  }

  Attributes form_of(const Held& held, bool by_rows) const {
    const Parameter& p = graph_.parameters[held.parameter];
    const Initializer& weight = source(p);
    Attributes form{{"rows", weight.shape[0]},
                    {"columns", weight.shape[1]},
                    {"by_rows", int64_t{by_rows ? 1 : 0}}};
    const Quantization* q = weight.quantization.get();
    form.set("type", q != nullptr ? int64_t{q->onnx_type} : number_of_dtype(weight.dtype));
    if (q == nullptr) return form;
    form.set("axis", q->axis);
    if (q->block_size != 0) form.set("block_size", q->block_size);
    return form;
  }

  // alpha op(A) W + beta C
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

  // Scales that only such products read now.
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
  std::vector<std::vector<Node>> made_;  // in the place of a node
  std::set<ValueId> outputs_;
  std::set<ValueId> scales_;
};

}  // namespace

Graph hold_frozen(const Graph& graph, const OnnxFile& file) { return Holder(graph, file).run(); }

}  // namespace ofsdp::importer
