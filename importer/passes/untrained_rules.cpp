#include "importer/passes/untrained_rules.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "kernels/base/text.h"

namespace ofsdp::importer {
namespace {

// Returns whether nodes read it, and all are operators of rotary embeddings that read it as cosines
// or sines.
bool is_operand_of_rotary(const Graph& graph, const GraphUses& uses, const Parameter& p) {
  const auto& readers = uses.readers(p.value);
  return !readers.empty() && std::ranges::all_of(readers, [&](size_t reader) {
    const Node& node = graph.nodes[reader];
    if (node.op->rotary_inputs.empty()) return false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == p.value && !has_operand(node.op->rotary_inputs, i)) return false;
    }
    return true;
  });
}

// Returns the operator that reads one number as a bound, a fill or a choice, also through views and
// casts; empty if there is none.
std::string reader_of_number(const Graph& graph, const GraphUses& uses, ValueId value) {
  for (const size_t reader : uses.readers(value)) {
    const Node& node = graph.nodes[reader];
    if (node.op->reads_number) return node.op->name;
    if (!node.op->view && node.op->full_name() != "Cast") continue;
    const std::string next = reader_of_number(graph, uses, node.outputs[0]);
    if (!next.empty()) return next;
  }
  return "";
}

// Finds MatMul nodes that read the value, also through nodes that only move its elements; adds each
// with the operands that read it, as bits.
void collect_products(const Graph& graph, const GraphUses& uses, ValueId value,
                      std::map<size_t, int>& operands) {
  for (const size_t reader : uses.readers(value)) {
    const Node& node = graph.nodes[reader];
    if (is_operator(node, "MatMul")) {
      for (size_t i = 0; i < 2; ++i) operands[reader] |= node.inputs[i] == value ? 1 << i : 0;
    } else if (node.op->view || is_operator(node, "Transpose") || is_operator(node, "Cast")) {
      collect_products(graph, uses, node.outputs[0], operands);
    }
  }
}

// Returns whether the number scales both factors of a product: attention, as exporters write it.
bool scales_both_factors(const Graph& graph, const GraphUses& uses, const Parameter& p) {
  std::map<size_t, int> operands;
  for (const size_t reader : uses.readers(p.value)) {
    const Node& node = graph.nodes[reader];
    if (!is_operator(node, "Mul") && !is_operator(node, "Div")) return false;
    collect_products(graph, uses, node.outputs[0], operands);
  }
  return std::ranges::any_of(operands, [](const auto& one) { return one.second == 3; });
}

// "/encoder/Constant_3_output_0": PyTorch's older exporter names the tensors of a module's code so.
bool is_name_of_code(const std::string& name) {
  const size_t slash = name.rfind('/');
  if (name.empty() || name[0] != '/') return false;
  const std::string last = name.substr(slash + 1);
  return last == "Constant_output_0" || fnmatch("Constant_[0-9]*_output_0", last.c_str(), 0) == 0;
}

// Returns whether the code of a module has the tensor. A frozen module has its weights in the code:
// then the file has no matrix with the name of a parameter.
bool is_tensor_of_code(const Graph& graph, const Parameter& p, const std::set<std::string>& added) {
  return is_name_of_code(p.name) && std::ranges::any_of(graph.parameters, [&](const Parameter& q) {
           return !is_name_of_code(q.name) && !added.contains(q.name) &&
                  graph.value(q.value).desc.shape.rank() > 1;
         });
}

// "val_12": PyTorch's exporter names values so that have no name in the module.
bool is_unnamed_value(const std::string& name) {
  return name.starts_with("val_") && name.size() > 4 &&
         name.find_first_not_of("0123456789", 4) == std::string::npos;
}

std::string why_not_number(const Graph& graph, const GraphUses& uses, const Parameter& p) {
  const std::string reader = reader_of_number(graph, uses, p.value);
  if (!reader.empty()) return "one number that " + reader + " reads";
  if (scales_both_factors(graph, uses, p)) return "the scale of an attention";
  return is_unnamed_value(p.name) ? "one number that PyTorch's exporter computed" : "";
}

// The rotation of an embedding, as exporters write it without an operator: x cos + half(x) sin,
// where half(x) joins the negative of one half of x and the other half.
class RotationReaders {
 public:
  RotationReaders(const Graph& graph, const GraphUses& uses) : graph_(graph), uses_(uses) {}

  // Returns whether nodes read the value, also through views and casts, and all multiply x or
  // half(x) by it in a rotation.
  bool all_rotate(ValueId table) const {
    const std::vector<size_t>& readers = uses_.readers(table);
    return !readers.empty() && std::ranges::all_of(readers, [&](size_t reader) {
      const Node& node = graph_.nodes[reader];
      if (node.op->view || is_operator(node, "Cast")) return all_rotate(node.outputs[0]);
      return is_operator(node, "Mul") && rotates(node, table);
    });
  }

 private:
  bool rotates(const Node& product, ValueId table) const {
    const std::vector<size_t>& sums = uses_.readers(product.outputs[0]);
    return sums.size() == 1 && is_operator(graph_.nodes[sums[0]], "Add") &&
           std::ranges::any_of(graph_.nodes[sums[0]].inputs, [&](ValueId id) {
             const Node* const term = maker(id);
             return term != nullptr && is_operator(*term, "Mul") &&
                    (id == product.outputs[0] || shares_operand(*term, product, table)) &&
                    std::ranges::any_of(term->inputs, [&](ValueId x) { return is_half(x); });
           });
  }

  // The other term of the sum has half(x) of the x that `product` has.
  bool shares_operand(const Node& term, const Node& product, ValueId table) const {
    const ValueId x = product.inputs[product.inputs[0] == table ? 1 : 0];
    return std::ranges::any_of(term.inputs, [&](ValueId id) { return halves_of(id) == x; });
  }

  bool is_half(ValueId id) const { return halves_of(id) != 0; }

  // Returns x if `id` is half(x); else 0.
  ValueId halves_of(ValueId id) const {
    const Node* const joined = maker_before_views(id);
    if (joined == nullptr || !is_operator(*joined, "Concat") || joined->inputs.size() != 2)
      return 0;
    const Node* const first = maker_before_views(joined->inputs[0]);
    const Node* const second = maker_before_views(joined->inputs[1]);
    if (first == nullptr || second == nullptr || !is_operator(*first, "Neg")) return 0;
    const Node* const negated = maker_before_views(first->inputs[0]);
    const bool cut = negated != nullptr && is_cut(*negated) && is_cut(*second);
    return cut && negated->inputs[0] == second->inputs[0] ? second->inputs[0] : 0;
  }

  static bool is_cut(const Node& node) {
    return is_operator(node, "Slice") || is_operator(node, "Split") || is_operator(node, "Gather");
  }

  const Node* maker(ValueId id) const {
    const int n = uses_.maker(id);
    return n < 0 ? nullptr : &graph_.nodes[static_cast<size_t>(n)];
  }

  const Node* maker_before_views(ValueId id) const {
    const Node* node = maker(id);
    while (node != nullptr && node->op->view) node = maker(node->inputs[0]);
    return node;
  }

  const Graph& graph_;
  const GraphUses& uses_;
};

// Frequencies: products with positions become angles of Cos and Sin, and nothing else.
class AngleReaders {
 public:
  AngleReaders(const Graph& graph, const GraphUses& uses, const Parameter& p)
      : graph_(graph), uses_(uses), frequencies_(p.value) {}

  bool all_make_angles() { return only_angles(frequencies_, false); }

 private:
  // `multiplied`: by positions, before `value`.
  bool only_angles(ValueId value, bool multiplied) {
    const std::vector<size_t>& readers = uses_.readers(value);
    return !readers.empty() && std::ranges::all_of(readers, [&](size_t reader) {
      const Node& node = graph_.nodes[reader];
      if (is_operator(node, "Cos") || is_operator(node, "Sin")) return multiplied;
      const bool product = is_operator(node, "Mul") || is_operator(node, "MatMul");
      if (product) {
        const ValueId other = node.inputs[node.inputs[0] == value ? 1 : 0];
        return are_positions(other) && only_angles(node.outputs[0], true);
      }
      return moves(node) && only_angles(node.outputs[0], multiplied);
    });
  }

  static bool moves(const Node& node) {
    static const std::set<std::string> kMoving = {"Cast", "Transpose", "Concat", "Expand"};
    return node.op->view || kMoving.contains(node.op->full_name());
  }

  // Returns whether the value depends on no floating-point input and on no other parameter.
  bool are_positions(ValueId value) {
    if (value == 0 || value == frequencies_ || !seen_.insert(value).second) return true;
    const Value& v = graph_.value(value);
    if (v.kind == ValueKind::kInput) return !is_floating(v.desc.dtype);
    if (v.kind == ValueKind::kParameter && v.constant == nullptr) return false;
    const int n = uses_.maker(value);
    if (n < 0) return true;
    const Node& node = graph_.nodes[static_cast<size_t>(n)];
    if (is_operator(node, "Shape") || is_operator(node, "Size")) return true;
    return std::ranges::all_of(node.inputs, [&](ValueId id) { return are_positions(id); });
  }

  const Graph& graph_;
  const GraphUses& uses_;
  const ValueId frequencies_;
  std::set<ValueId> seen_;
};

// Slopes of positions, one a head: products with positions are added to the scores of an attention,
// and go nowhere else (ALiBi). Tables that positions index are no slopes: they are learned.
class SlopeReaders {
 public:
  SlopeReaders(const Graph& graph, const GraphUses& uses) : graph_(graph), uses_(uses) {}

  bool all_add_to_scores(const Parameter& p) const {
    const Shape& shape = graph_.value(p.value).desc.shape;
    return std::ranges::count_if(shape.axes(), [](int64_t n) { return n > 1; }) <= 1 &&
           only_scores(p.value, false);
  }

 private:
  // `multiplied`: by positions, before `value`.
  bool only_scores(ValueId value, bool multiplied) const {
    const std::vector<size_t>& readers = uses_.readers(value);
    return !readers.empty() && std::ranges::all_of(readers, [&](size_t reader) {
      const Node& node = graph_.nodes[reader];
      if (is_operator(node, "Shape")) return true;
      if (moves_elements(node)) return only_scores(node.outputs[0], multiplied);
      if (is_operator(node, "Mul")) {
        const ValueId other = other_operand(node, value);
        return is_made_of_positions(other) &&
               only_scores(node.outputs[0], multiplied || tells_positions(other));
      }
      return multiplied && adds_to_scores(node, value);
    });
  }

  bool adds_to_scores(const Node& node, ValueId value) const {
    if (is_bias_of_attention(node, value)) return true;
    const bool sum = is_operator(node, "Add") || is_operator(node, "Sub");
    if (sum && !is_made_of_positions(other_operand(node, value)))
      return are_scores(other_operand(node, value)) && reaches_softmax(node.outputs[0]);
    const bool passed = sum || is_operator(node, "Neg") || is_operator(node, "Where");
    return passed && only_scores(node.outputs[0], true) &&
           std::ranges::all_of(node.inputs,
                               [&](ValueId id) { return id == value || is_made_of_positions(id); });
  }

  static ValueId other_operand(const Node& node, ValueId value) {
    return node.inputs[node.inputs[0] == value ? 1 : 0];
  }

  static bool moves_elements(const Node& node) {
    static const std::set<std::string> kMoving = {"Cast",  "Transpose", "Concat", "Expand",
                                                  "Slice", "Tile",      "Split"};
    return node.op->view || kMoving.contains(node.op->full_name());
  }

  static bool is_bias_of_attention(const Node& node, ValueId value) {
    static const std::map<std::string, size_t> kBiases = {
        {"Attention", 3},
        {"com.microsoft.Attention", 5},
        {"com.microsoft.MultiHeadAttention", 5},
        {"com.microsoft.GroupQueryAttention", 10}};
    const auto found = kBiases.find(node.op->full_name());
    return found != kBiases.end() && found->second < node.inputs.size() &&
           node.inputs[found->second] == value && std::ranges::count(node.inputs, value) == 1;
  }

  // Returns whether the value depends on no parameter with an axis and on no input but positions
  // and masks. Nearest values come first, so that a value of the network is told soon.
  bool is_made_of_positions(ValueId value) const {
    std::vector<ValueId> open{value};
    std::set<ValueId> seen{0, value};
    for (size_t at = 0; at < open.size(); ++at) {
      const Value& v = graph_.value(open[at]);
      if (v.kind == ValueKind::kInput && !is_position_or_mask(v)) return false;
      if (v.kind == ValueKind::kParameter && v.desc.shape.rank() > 0) return false;
      const Node* const made = maker(open[at]);
      if (made == nullptr || v.desc.dtype == DType::kBool || is_operator(*made, "Shape")) continue;
      for (const ValueId id : made->inputs) {
        if (seen.insert(id).second) open.push_back(id);
      }
    }
    return true;
  }

  static bool is_position_or_mask(const Value& input) {
    return !is_floating(input.desc.dtype) && (input.name.find("pos") != std::string::npos ||
                                              input.name.find("mask") != std::string::npos);
  }

  // Returns whether the elements differ by position: a mask alone does not tell it. REQUIRES: the
  // value is made of positions.
  bool tells_positions(ValueId value) const {
    const Value& v = graph_.value(value);
    if (v.kind == ValueKind::kInput) return v.name.find("pos") != std::string::npos;
    const Node* const made = maker(value);
    if (made == nullptr) return v.constant != nullptr && v.constant->desc.numel() > 1;
    if (is_operator(*made, "CumSum") || is_operator(*made, "Range")) return true;
    if (v.desc.dtype == DType::kBool || is_operator(*made, "Shape")) return false;
    const bool moved = moves_elements(*made) && !is_operator(*made, "Concat");
    const auto end = moved ? made->inputs.begin() + 1 : made->inputs.end();
    return std::any_of(made->inputs.begin(), end, [&](ValueId id) { return tells_positions(id); });
  }

  // Returns whether a product of two values of the network makes it, perhaps scaled and masked.
  bool are_scores(ValueId value) const {
    const Node* const made = maker(value);
    if (made == nullptr) return false;
    if (is_operator(*made, "MatMul") || is_operator(*made, "com.microsoft.FusedMatMul") ||
        is_operator(*made, "Einsum")) {
      return std::ranges::none_of(made->inputs, [&](ValueId id) { return is_weight(id); });
    }
    static const std::set<std::string> kScaling = {"Mul", "Div", "Add", "Sub", "Where"};
    const bool scaled = kScaling.contains(made->op->full_name());
    if (!scaled && !moves_elements(*made)) return false;
    return std::ranges::any_of(made->inputs, [&](ValueId id) { return are_scores(id); });
  }

  bool is_weight(ValueId value) const {
    const Node* made = maker(value);
    while (made != nullptr && moves_elements(*made)) {
      value = made->inputs[0];
      made = maker(value);
    }
    return made == nullptr && graph_.value(value).kind != ValueKind::kInput;
  }

  bool reaches_softmax(ValueId value) const {
    static const std::set<std::string> kPassing = {"Mul", "Div", "Add", "Sub", "Where", "Max"};
    return std::ranges::any_of(uses_.readers(value), [&](size_t reader) {
      const Node& node = graph_.nodes[reader];
      if (is_operator(node, "Softmax")) return true;
      return (moves_elements(node) || kPassing.contains(node.op->full_name())) &&
             reaches_softmax(node.outputs[0]);
    });
  }

  const Node* maker(ValueId id) const {
    const int n = uses_.maker(id);
    return n < 0 ? nullptr : &graph_.nodes[static_cast<size_t>(n)];
  }

  const Graph& graph_;
  const GraphUses& uses_;
};

// Returns whether only group normalizations read it, as PyTorch's exporters write them: an instance
// normalization of groups between two reshapes, then the weights of the channels.
bool is_of_groups(const Graph& graph, const GraphUses& uses, const Parameter& p) {
  const auto reshapes = [&](size_t n) { return is_operator(graph.nodes[n], "Reshape"); };
  const auto is_weight = [&](ValueId id) {
    const int made = uses.maker(id);
    if (made < 0) return graph.value(id).kind == ValueKind::kParameter;
    const Node& view = graph.nodes[static_cast<size_t>(made)];
    return view.op->view && graph.value(view.inputs[0]).kind == ValueKind::kParameter;
  };
  const auto scales = [&](size_t n) {
    const Node& next = graph.nodes[n];
    return is_operator(next, "Mul") && std::ranges::any_of(next.inputs, is_weight);
  };
  const auto& readers = uses.readers(p.value);
  return !readers.empty() && std::ranges::all_of(readers, [&](size_t reader) {
    const Node& node = graph.nodes[reader];
    if (!is_operator(node, "InstanceNormalization") || node.inputs[0] == p.value) return false;
    const int before = uses.maker(node.inputs[0]);
    const auto& after = uses.readers(node.outputs[0]);
    if (before < 0 || !reshapes(static_cast<size_t>(before)) || after.size() != 1) return false;
    const auto& next = uses.readers(graph.nodes[after[0]].outputs[0]);
    const bool scaled = !next.empty() && std::ranges::all_of(next, scales);
    return reshapes(after[0]) && (scaled || is_unnamed_value(p.name));
  });
}

// Scales of integers that the file stores: W is integers * scale, or the scale multiplies the
// product with the integers. The common forms are whole weights before this rule is asked
// (importer/normalize/quantized_graph.h). In the others the integers stay, and so must the scale.
class ScaleReaders {
 public:
  ScaleReaders(const Graph& graph, const GraphUses& uses) : graph_(graph), uses_(uses) {}

  // Returns whether nodes read the value, also through views and casts, and all multiply stored
  // integers, or a product with such, by it.
  bool all_scale_integers(ValueId scale) const {
    const std::vector<size_t>& readers = uses_.readers(scale);
    return !readers.empty() && std::ranges::all_of(readers, [&](size_t reader) {
      const Node& node = graph_.nodes[reader];
      if (only_moves(node)) {  // CastLike may read the type alone
        return node.inputs[0] != scale || all_scale_integers(node.outputs[0]);
      }
      if (!is_operator(node, "Mul") && !is_operator(node, "Div")) return false;
      const ValueId other = node.inputs[node.inputs[0] == scale ? 1 : 0];
      return from_integers(other) || is_product_with_integers(other);
    });
  }

 private:
  static bool only_moves(const Node& node) {
    static const std::set<std::string> kMoving = {"Cast",     "CastLike", "Transpose",
                                                  "Identity", "Expand",   "Unsqueeze"};
    return node.op->view || kMoving.contains(node.op->full_name());
  }

  // Returns whether the value holds nothing but numbers that the file stores as integers.
  bool from_integers(ValueId id) const {
    const Value& value = graph_.value(id);
    const int at = uses_.maker(id);
    if (at < 0) return value.kind != ValueKind::kInput && is_integer(value.desc.dtype);
    const Node& node = graph_.nodes[static_cast<size_t>(at)];
    if (is_operator(node, "Constant")) {
      const auto tensor = node.attributes.get<ConstantPtr>("value", nullptr);
      return tensor != nullptr && is_integer(tensor->desc.dtype);
    }
    if (only_moves(node)) return from_integers(node.inputs[0]);
    if (!is_operator(node, "Sub")) return false;  // a zero point
    return from_integers(node.inputs[0]) && from_integers(node.inputs[1]);
  }

  bool is_product_with_integers(ValueId id) const {
    const int at = uses_.maker(id);
    if (at < 0) return false;
    const Node& node = graph_.nodes[static_cast<size_t>(at)];
    if (only_moves(node)) return is_product_with_integers(node.inputs[0]);
    const bool product =
        is_operator(node, "MatMul") || is_operator(node, "Gemm") || is_operator(node, "Conv");
    return product && (from_integers(node.inputs[0]) || from_integers(node.inputs[1]));
  }

  const Graph& graph_;
  const GraphUses& uses_;
};

// Operands that an operator reads as a setting: OneHot's [off, on], the window of an STFT, the
// scale of integers.
std::string reader_of_setting(const Graph& graph, const GraphUses& uses, ValueId value) {
  static const std::map<std::string, size_t> kSettings = {
      {"OneHot", 2}, {"STFT", 2}, {"DequantizeLinear", 1}, {"QuantizeLinear", 1}};
  for (const size_t reader : uses.readers(value)) {
    const Node& node = graph.nodes[reader];
    const auto found = kSettings.find(node.op->full_name());
    const bool sets = found != kSettings.end() && found->second < node.inputs.size() &&
                      node.inputs[found->second] == value;
    if (sets) return node.op->name;
    if (!node.op->view && !is_operator(node, "Cast")) continue;
    const std::string next = reader_of_setting(graph, uses, node.outputs[0]);
    if (!next.empty()) return next;
  }
  return "";
}

}  // namespace

std::string why_not_by_rule(const Graph& graph, const GraphUses& uses, const Parameter& p,
                            const std::set<std::string>& added) {
  for (const char* pattern :
       {"*inv_freq", "*.attn.bias", "*.masked_bias", "*cos_cache", "*sin_cache"}) {
    if (fnmatch(pattern, p.name.c_str(), 0) == 0)
      return format_text("its name matches {}", pattern);
  }
  if (is_operand_of_rotary(graph, uses, p)) return "only cos and sin inputs read it";
  if (RotationReaders(graph, uses).all_rotate(p.value)) return "a table of cosines or sines";
  if (AngleReaders(graph, uses, p).all_make_angles()) return "frequencies of cosines and sines";
  if (SlopeReaders(graph, uses).all_add_to_scores(p)) return "slopes of an attention's positions";
  if (is_of_groups(graph, uses, p)) return "one number a group of a normalization";
  if (ScaleReaders(graph, uses).all_scale_integers(p.value)) return "a scale of stored integers";
  const std::string setting = reader_of_setting(graph, uses, p.value);
  if (!setting.empty()) return "a setting of " + setting;
  if (is_tensor_of_code(graph, p, added)) return "a tensor of the module's code";
  const Shape& shape = graph.value(p.value).desc.shape;
  if (shape.rank() == 0) return "rank 0";
  return shape.numel() == 1 ? why_not_number(graph, uses, p) : "";
}

}  // namespace ofsdp::importer
