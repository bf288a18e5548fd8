#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "importer/file/onnx_file.h"
#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "kernels/base/budgets.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

struct WireNode {
  std::string op, domain;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, int64_t> attributes;
  std::vector<WireNode> inner;            // of subgraphs
  std::vector<std::string> inner_reads;   // by these
  std::vector<std::string> inner_inputs;  // of the subgraphs

  std::string in(size_t i) const { return i < inputs.size() ? inputs[i] : ""; }
  int64_t attribute(const std::string& name, int64_t otherwise) const {
    const auto found = attributes.find(name);
    return found == attributes.end() ? otherwise : found->second;
  }
  bool ours() const { return domain.empty() || domain == "ai.onnx" || domain == "com.microsoft"; }
  bool is(const char* name) const { return ours() && op == name; }
};

Result<WireNode> parse_node(const WireField& node, int depth);

// Collects a subgraph's nodes and the names that they read.
Status collect_inner(const WireField& graph, int depth, WireNode& node) {
  OFSDP_REJECT_IF(depth > kMaxDepth, "expected subgraphs at most {} deep", kMaxDepth);
  for (WireReader reader(graph.bytes, graph.body); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
    if (field.number == graph_field::kInput) {
      node.inner_inputs.push_back(string_field(field.bytes, value_info_field::kName));
    }
    if (field.number != graph_field::kNode) continue;
    OFSDP_ASSIGN_OR_RETURN(WireNode inner, parse_node(field, depth));
    auto& names = node.inner_reads;
    names.insert(names.end(), inner.inputs.begin(), inner.inputs.end());
    names.insert(names.end(), inner.inner_reads.begin(), inner.inner_reads.end());
    node.inner.push_back(std::move(inner));
  }
  return ok_status();
}

Status parse_attribute(const WireField& attribute, int depth, WireNode& node) {
  int64_t value = 0;
  for (WireReader reader(attribute.bytes, attribute.body); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
    if (field.number == attribute_field::kInt) value = static_cast<int64_t>(field.value);
    if (field.type != WireType::kBytes) continue;
    if (field.number == attribute_field::kGraph || field.number == attribute_field::kGraphs) {
      OFSDP_RETURN_IF_ERROR(collect_inner(field, depth + 1, node));
    }
  }
  node.attributes[string_field(attribute.bytes, attribute_field::kName)] = value;
  return ok_status();
}

Result<WireNode> parse_node(const WireField& proto, int depth) {
  WireNode node;
  for (WireReader reader(proto.bytes, proto.body); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
    if (field.type != WireType::kBytes) continue;
    if (field.number == node_field::kInput) node.inputs.emplace_back(as_text(field.bytes));
    if (field.number == node_field::kOutput) node.outputs.emplace_back(as_text(field.bytes));
    if (field.number == node_field::kOperator) node.op = as_text(field.bytes);
    if (field.number == node_field::kDomain) node.domain = as_text(field.bytes);
    if (field.number == node_field::kAttribute)
      OFSDP_RETURN_IF_ERROR(parse_attribute(field, depth, node));
  }
  return node;
}

bool is_view(const WireNode& node) {
  for (const char* op : {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"}) {
    if (node.is(op)) return true;
  }
  return false;
}

bool reads_factor(const WireNode& node, size_t input);

// How a node dequantizes input `input`.
struct Use {
  size_t input;
  Quantization quantization;
};

class UseFinder {
 public:
  // `stored`: initializers; `outputs`: of the graph.
  UseFinder(const std::vector<WireNode>& nodes, const std::map<std::string, int>& integers,
            const std::set<std::string>& stored, const std::set<std::string>& outputs)
      : nodes_(nodes), integers_(integers), stored_(stored), elsewhere_(outputs) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const std::string& name : nodes[i].outputs) makers_[name] = i;
      for (const std::string& name : nodes[i].inputs) readers_[name].push_back(i);
      elsewhere_.insert(nodes[i].inner_reads.begin(), nodes[i].inner_reads.end());
    }
  }

  std::map<std::string, Quantization> run() const {
    std::map<std::string, Quantization> weights;
    std::set<std::string> others;  // read in some other way
    for (const WireNode& node : nodes_) {
      const std::vector<Use> uses = uses_of(node);
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const auto type = integers_.find(node.inputs[i]);
        if (type == integers_.end()) continue;
        const Use* use = nullptr;
        for (const Use& u : uses) use = u.input == i ? &u : use;
        if (use == nullptr || !enter(*type, use->quantization, weights)) others.insert(type->first);
      }
      others.insert(node.inner_reads.begin(), node.inner_reads.end());
    }
    for (const std::string& name : others) weights.erase(name);
    return weights;
  }

 private:
  static bool enter(const std::pair<const std::string, int>& integer, Quantization q,
                    std::map<std::string, Quantization>& weights) {
    q.onnx_type = integer.second;
    if (integer_carrier(q.onnx_type) == DType::kUndefined) return false;
    const bool bias = integer_carrier(q.onnx_type) == DType::kInt32;
    if (bias && q.multiplied) return false;
    if (q.rounds && bias) q.rounds = false;
    if (!bias) q.factors.clear();
    if (q.scale.empty() && q.factors.empty()) return false;
    const auto [found, fresh] = weights.emplace(integer.first, q);
    const Quantization& first = found->second;
    return fresh ||
           (first.scale == q.scale && first.zero_point == q.zero_point && first.axis == q.axis &&
            first.block_size == q.block_size && first.per_gate == q.per_gate &&
            first.factors == q.factors && first.multiplied == q.multiplied);
  }

  static Quantization pair(const WireNode& node, size_t scale, size_t zero, int64_t axis) {
    return {.scale = node.in(scale), .zero_point = node.in(zero), .axis = axis};
  }

  static Quantization gates(const WireNode& node, size_t scale, size_t zero) {
    Quantization q = pair(node, scale, zero, 0);
    q.per_gate = true;
    return q;
  }

  static Quantization bias(const WireNode& node, size_t a, size_t b) {
    return {.scale = "", .zero_point = "", .factors = {node.in(a), node.in(b)}, .axis = -1};
  }

  std::vector<Use> uses_of(const WireNode& node) const {
    if (node.is("DequantizeLinear")) {
      Quantization q = pair(node, 1, 2, node.attribute("axis", 1));
      q.block_size = node.attribute("block_size", 0);
      q.factors = factors_of(node);
      return {{0, std::move(q)}};
    }
    if (node.is("QLinearConv")) return {{3, pair(node, 4, 5, 0)}, {8, bias(node, 1, 4)}};
    if (node.is("QLinearMatMul")) return {{3, pair(node, 4, 5, -1)}, {0, pair(node, 1, 2, -2)}};
    if (node.is("QGemm")) {
      return {{3, pair(node, 4, 5, node.attribute("transB", 0) != 0 ? 0 : 1)},
              {6, bias(node, 1, 4)}};
    }
    if (node.is("QLinearAdd") || node.is("QLinearMul")) {
      return {{0, pair(node, 1, 2, -1)}, {3, pair(node, 4, 5, -1)}};
    }
    if (node.is("MatMulIntegerToFloat")) return {{1, pair(node, 3, 5, -1)}};
    if (node.is("DynamicQuantizeMatMul")) return {{1, pair(node, 2, 3, -1)}};
    if (node.is("DynamicQuantizeLSTM")) {
      return {{1, gates(node, 8, 9)}, {2, gates(node, 10, 11)}};
    }
    if (node.is("MatMulInteger") || node.is("ConvInteger")) {
      Quantization q = pair(node, 9, 3, node.op == "ConvInteger" ? 0 : -1);
      q.scale = scale_after(node);
      return {{1, std::move(q)}};
    }
    if (node.is("Cast")) return uses_of_cast(node);
    return {};
  }

  // Cast(q), less a zero point or not, times the scale: a product's operand or a table.
  std::vector<Use> uses_of_cast(const WireNode& cast) const {
    constexpr int64_t kFloat = 1, kFloat16 = 10, kBFloat16 = 16;
    const int64_t type = cast.attribute("to", 0);
    if (type != kFloat && type != kFloat16 && type != kBFloat16) return {};
    std::string value = cast.outputs.empty() ? "" : cast.outputs[0];
    const WireNode* next = lone_reader(value);
    Quantization q{.scale = "", .zero_point = ""};
    q.multiplied = true;
    if (next != nullptr && next->is("Sub") && next->in(0) == value && !next->outputs.empty()) {
      q.zero_point = before_cast(next->in(1));
      value = next->outputs[0];
      next = lone_reader(value);
    }
    if (next == nullptr || !next->is("Mul") || next->inputs.size() != 2) return {};
    q.scale = next->inputs[next->inputs[0] == value ? 1 : 0];
    // In 16 bits, integers of more than 8 are not exact, and only a scale that is an initializer
    // becomes float32 with the rest of the model.
    if (type != kFloat && (!has_8_bits(cast.in(0)) || !stored_.contains(q.scale))) return {};
    if (next->outputs.empty() || !is_factor(next->outputs[0], 0)) return {};
    return {{0, std::move(q)}};
  }

  bool has_8_bits(const std::string& integers) const {
    const auto found = integers_.find(integers);
    return found != integers_.end() && dtype_size(integer_carrier(found->second)) == 1;
  }

  // Returns the node that alone reads the value, or null.
  const WireNode* lone_reader(const std::string& name) const {
    return elsewhere_.contains(name) ? nullptr : only_reader(name);
  }

  std::string before_cast(const std::string& name) const {
    const WireNode* made = maker(name);
    return made != nullptr && made->is("Cast") ? made->in(0) : name;
  }

  // Returns whether a product or a table look-up reads the value, if only through views and casts.
  bool is_factor(const std::string& value, int depth) const {
    const auto found = readers_.find(value);
    if (found == readers_.end() || depth > kMostViews) return false;
    return std::ranges::any_of(found->second, [&](size_t n) {
      const WireNode& node = nodes_[n];
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] == value && reads_factor(node, i)) return true;
      }
      const bool passes = (is_view(node) || node.is("Cast")) && node.in(0) == value;
      return passes && !node.outputs.empty() && is_factor(node.outputs[0], depth + 1);
    });
  }

  const WireNode* only_reader(const std::string& name) const {
    const auto found = readers_.find(name);
    return found == readers_.end() || found->second.size() != 1 ? nullptr
                                                                : &nodes_[found->second[0]];
  }
  const WireNode* maker(const std::string& name) const {
    const auto found = makers_.find(name);
    return found == makers_.end() ? nullptr : &nodes_[found->second];
  }

  // Returns the weight's scale: after a bias of integers and a Cast, the product meets it in a Mul,
  // times the other operand's scale.
  std::string scale_after(const WireNode& product) const {
    const WireNode* reader = product.outputs.empty() ? nullptr : only_reader(product.outputs[0]);
    if (reader != nullptr && reader->is("Add") && reader->outputs.size() == 1) {
      reader = only_reader(reader->outputs[0]);
    }
    if (reader == nullptr || !reader->is("Cast")) return "";
    const std::string cast = reader->outputs.empty() ? "" : reader->outputs[0];
    const WireNode* mul = only_reader(cast);
    if (mul == nullptr || !mul->is("Mul") || mul->inputs.size() != 2) return "";
    const WireNode* scales = maker(mul->inputs[0] == cast ? mul->inputs[1] : mul->inputs[0]);
    if (scales == nullptr || !scales->is("Mul") || scales->inputs.size() != 2) return "";
    for (size_t i = 0; i < 2; ++i) {
      const WireNode* made = maker(scales->inputs[1 - i]);
      if (made != nullptr && made->is("DynamicQuantizeLinear")) return scales->inputs[i];
    }
    return "";
  }

  // Returns the scales of both operands with the product to which the bias is added.
  std::vector<std::string> factors_of(const WireNode& dequantize) const {
    const WireNode* layer =
        dequantize.outputs.empty() ? nullptr : only_reader(dequantize.outputs[0]);
    if (layer == nullptr || layer->inputs.size() < 3 || layer->inputs[2] != dequantize.outputs[0]) {
      return {};
    }
    std::vector<std::string> factors;
    for (size_t i = 0; i < 2; ++i) {
      const WireNode* operand = maker(layer->inputs[i]);
      while (operand != nullptr && !operand->is("DequantizeLinear") && is_view(*operand)) {
        operand = maker(operand->in(0));
      }
      if (operand == nullptr || !operand->is("DequantizeLinear")) return {};
      factors.push_back(operand->in(1));
    }
    return factors;
  }

  static constexpr int kMostViews = 8;

  const std::vector<WireNode>& nodes_;
  const std::map<std::string, int>& integers_;
  const std::set<std::string>& stored_;
  std::set<std::string> elsewhere_;  // names that outputs are or subgraphs read
  std::map<std::string, size_t> makers_;
  std::map<std::string, std::vector<size_t>> readers_;
};

}  // namespace

namespace {

// Returns whether the input is a few-bit weight that the operator reads directly, or its scales or
// zero points.
bool reads_own_type(const WireNode& node, size_t input) {
  if (node.is("MatMulNBits")) return input >= 1 && input <= 3;
  return node.is("GatherBlockQuantized") && (input == 0 || input == 2 || input == 3);
}

// Walks backwards: a table that a product also reads (a tied head) is reshaped in between.
std::set<std::string> read_in_own_type(const std::vector<WireNode>& nodes) {
  std::set<std::string> names, others;
  for (size_t n = nodes.size(); n-- > 0;) {
    const WireNode& node = nodes[n];
    const bool view = (node.is("Reshape") || node.is("Identity")) && node.outputs.size() == 1 &&
                      names.contains(node.outputs[0]) && !others.contains(node.outputs[0]);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      (reads_own_type(node, i) || (view && i == 0) ? names : others).insert(node.inputs[i]);
    }
    others.insert(node.inner_reads.begin(), node.inner_reads.end());
  }
  std::erase_if(names, [&](const std::string& name) { return others.contains(name); });
  return names;
}

// Operators and the inputs, one bit each, that they read as weights; `factors` of them multiply
// sums or give rows.
struct WeightInputs {
  const char* op;
  uint32_t inputs, factors;
};
constexpr WeightInputs kWeightInputs[] = {
    {"Add", 3, 0},
    {"BatchNormalization", 0b11110, 0},
    {"Conv", 0b110, 0b10},
    {"ConvTranspose", 0b110, 0b10},
    {"Div", 3, 0},
    {"FusedConv", 0b110, 0b10},
    {"FusedGemm", 0b111, 3},
    {"FusedMatMul", 3, 3},
    {"GRU", 0b1110, 0b110},
    {"Gather", 1, 1},
    {"Gemm", 0b111, 3},
    {"GroupNormalization", 0b110, 0},
    {"InstanceNormalization", 0b110, 0},
    {"LSTM", 0b10001110, 0b110},
    {"LayerNormalization", 0b110, 0},
    {"MatMul", 3, 3},
    {"Mul", 3, 0},
    {"PRelu", 0b10, 0},
    {"RMSNormalization", 0b10, 0},
    {"RNN", 0b1110, 0b110},
    {"SkipLayerNormalization", 0b11100, 0},
    {"Sub", 3, 0},
};

bool has_bit(uint32_t bits, size_t i) { return i < 32 && (bits >> i & 1) != 0; }

bool reads_weight(const WireNode& node, size_t input) {
  return std::ranges::any_of(kWeightInputs, [&](const WeightInputs& row) {
    return node.is(row.op) && has_bit(row.inputs, input);
  });
}

bool reads_factor(const WireNode& node, size_t input) {
  return std::ranges::any_of(kWeightInputs, [&](const WeightInputs& row) {
    return node.is(row.op) && has_bit(row.factors, input);
  });
}

struct PlacedNode {
  const WireNode* node;
  bool inside;  // a subgraph
};

// Lists all nodes; the nodes of a subgraph come before the node that has it.
void list_all(const std::vector<WireNode>& nodes, bool inside, std::vector<PlacedNode>& all) {
  for (const WireNode& node : nodes) {
    list_all(node.inner, true, all);
    all.push_back({&node, inside});
  }
}

// Returns the nodes that compute from the values of the graph's inputs, not only from constants and
// shapes: numbers of such nodes are no weights (Resize's scales).
std::vector<bool> on_data(const std::vector<PlacedNode>& nodes, std::set<std::string> known) {
  for (const PlacedNode& placed : nodes) {  // the state of a loop
    known.insert(placed.node->inner_inputs.begin(), placed.node->inner_inputs.end());
  }
  std::vector<bool> computes;
  for (const PlacedNode& placed : nodes) {
    const WireNode& node = *placed.node;
    const auto reads = [&](const std::string& name) { return known.contains(name); };
    const bool from_data =
        std::ranges::any_of(node.inputs, reads) || std::ranges::any_of(node.inner_reads, reads);
    computes.push_back(from_data && !node.is("Shape") && !node.is("Size"));
    if (computes.back()) known.insert(node.outputs.begin(), node.outputs.end());
  }
  return computes;
}

// Returns whether the node passes input i on, if its output is a weight. Inside a branch, exporters
// also cut and join a recurrence's weights.
bool passes_weight(const PlacedNode& placed, size_t i) {
  const WireNode& node = *placed.node;
  if (is_view(node) || node.is("Cast")) return i == 0;
  return placed.inside && (node.is("Concat") || (node.is("Slice") && i == 0));
}

bool is_elementwise(const WireNode& node) {
  return node.is("Add") || node.is("Div") || node.is("Mul") || node.is("Sub");
}

// Finds the names that operators read as weights, walking backwards. `inputs`: of the graph,
// without initializers.
void find_weights(const std::vector<WireNode>& nodes, const std::set<std::string>& inputs,
                  QuantizedUses& uses) {
  std::vector<PlacedNode> all;
  list_all(nodes, false, all);
  const std::vector<bool> computes = on_data(all, inputs);
  for (size_t n = all.size(); n-- > 0;) {
    const WireNode& node = *all[n].node;
    const std::string output = node.outputs.size() == 1 ? node.outputs[0] : "";
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const bool weight = computes[n] && reads_weight(node, i), passes = passes_weight(all[n], i);
      if (weight || (passes && uses.read_as_weights.contains(output))) {
        uses.read_as_weights.insert(node.inputs[i]);
      }
      if ((weight && !is_elementwise(node)) || (passes && uses.operands.contains(output))) {
        uses.operands.insert(node.inputs[i]);
      }
    }
  }
}

}  // namespace

Result<QuantizedUses> quantized_uses(const WireField& graph,
                                     const std::map<std::string, int>& integers) {
  QuantizedUses uses;
  std::vector<WireNode> nodes;
  std::set<std::string> inputs, outputs, initializers;
  for (WireReader reader(graph.bytes, graph.body); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
    if (field.type != WireType::kBytes) continue;
    if (field.number == graph_field::kInput) {
      inputs.insert(string_field(field.bytes, value_info_field::kName));
    } else if (field.number == graph_field::kOutput) {
      outputs.insert(string_field(field.bytes, value_info_field::kName));
    } else if (field.number == graph_field::kInitializer) {
      initializers.insert(string_field(field.bytes, tensor_field::kName));
    }
    if (field.number != graph_field::kNode) continue;
    OFSDP_ASSIGN_OR_RETURN(WireNode node, parse_node(field, 0));
    if (node.is("Constant")) uses.constants.push_back(field);
    nodes.push_back(std::move(node));
  }
  uses.weights = UseFinder(nodes, integers, initializers, outputs).run();
  uses.own_type = read_in_own_type(nodes);
  std::erase_if(inputs, [&](const std::string& name) { return initializers.contains(name); });
  find_weights(nodes, inputs, uses);
  return uses;
}

}  // namespace ofsdp::importer
