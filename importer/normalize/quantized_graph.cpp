#include "importer/normalize/quantized_graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/file/tensor_record.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

// qlinear replaces a QLinear operator (or QGemm) by the operator on floats and a FakeQuantize with
// the output's scale and zero point.
//
// Appends nodes to the graph in `values`. Errors: kInput for an operator without a form on floats,
// or an operand that `values` refuses.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md

// Inputs `scale` and `scale` + 1 are the output's scale and zero point.
Status finish(QuantizedValues& values, const onnx::NodeProto& node, const std::string& value,
              int scale) {
  OFSDP_ASSIGN_OR_RETURN(const QuantizationPair pair, values.pair_at(node, scale, 1));
  return values.quantized_to(value, pair, node.output(0));
}

Status conv(QuantizedValues& values, const onnx::NodeProto& node) {
  OFSDP_ASSIGN_OR_RETURN(const std::string x, values.operand(node, 0, 1, 1));
  OFSDP_ASSIGN_OR_RETURN(const std::string w, values.operand(node, 3, 4, 0));
  OFSDP_RETURN_IF_ERROR(values.check_bias(node, 8));
  const std::string y = values.fresh(node.output(0) + "//float");
  values.copy_attributes(node, values.add("Conv", {x, w, input_or_none(node, 8)}, y));
  return finish(values, node, y, 6);
}

Status binary(QuantizedValues& values, const onnx::NodeProto& node, const char* op, int64_t axis) {
  OFSDP_ASSIGN_OR_RETURN(const std::string a, values.operand(node, 0, 1, axis));
  OFSDP_ASSIGN_OR_RETURN(const std::string b, values.operand(node, 3, 4, axis));
  const std::string y = values.fresh(node.output(0) + "//float");
  values.add(op, {a, b}, y);
  return finish(values, node, y, 6);
}

Status gemm(QuantizedValues& values, const onnx::NodeProto& node) {
  OFSDP_ASSIGN_OR_RETURN(const std::string a, values.operand(node, 0, 1, 1));
  OFSDP_ASSIGN_OR_RETURN(const std::string b, values.operand(node, 3, 4, 1));
  OFSDP_RETURN_IF_ERROR(values.check_bias(node, 6));
  const bool floats = input_or_none(node, 7).empty();
  const std::string y = floats ? node.output(0) : values.fresh(node.output(0) + "//float");
  values.copy_attributes(node, values.add("Gemm", {a, b, input_or_none(node, 6)}, y));
  return floats ? ok_status() : finish(values, node, y, 7);
}

Status concat(QuantizedValues& values, const onnx::NodeProto& node) {
  std::vector<std::string> parts;
  for (int i = 2; i + 2 < node.input_size(); i += 3) {
    OFSDP_ASSIGN_OR_RETURN(const std::string x, values.operand(node, i, i + 1, 1));
    parts.push_back(x);
  }
  const std::string y = values.fresh(node.output(0) + "//float");
  values.copy_attributes(node, values.add("Concat", parts, y));
  return finish(values, node, y, 0);
}

Status where(QuantizedValues& values, const onnx::NodeProto& node) {
  OFSDP_ASSIGN_OR_RETURN(const std::string a, values.operand(node, 1, 2, 1));
  OFSDP_ASSIGN_OR_RETURN(const std::string b, values.operand(node, 4, 5, 1));
  const std::string y = values.fresh(node.output(0) + "//float");
  values.add("Where", {node.input(0), a, b}, y);
  return finish(values, node, y, 7);
}

Status unary(QuantizedValues& values, const onnx::NodeProto& node, const char* op,
             std::initializer_list<const char*> without = {}) {
  OFSDP_REJECT_IF(int_attribute(node, "channels_last", 0) != 0,
                  "attribute 'channels_last': expected 0, found 1");
  OFSDP_ASSIGN_OR_RETURN(const std::string x, values.operand(node, 0, 1, 1));
  const std::string y = values.fresh(node.output(0) + "//float");
  values.copy_attributes(node, values.add(op, {x}, y), without);
  return finish(values, node, y, 3);
}

Status lower_qlinear(QuantizedValues& values, const onnx::NodeProto& node) {
  const std::string& op = node.op_type();
  if (op == "QLinearConv") return conv(values, node);
  if (op == "QLinearMatMul") return binary(values, node, "MatMul", -1);
  if (op == "QLinearAdd") return binary(values, node, "Add", -1);
  if (op == "QLinearMul") return binary(values, node, "Mul", -1);
  if (op == "QGemm") return gemm(values, node);
  if (op == "QLinearConcat") return concat(values, node);
  if (op == "QLinearWhere") return where(values, node);
  if (op == "QLinearGlobalAveragePool")
    return unary(values, node, "GlobalAveragePool", {"channels_last"});
  if (op == "QLinearAveragePool") return unary(values, node, "AveragePool", {"channels_last"});
  if (op == "QLinearSigmoid") return unary(values, node, "Sigmoid");
  if (op == "QLinearLeakyRelu") return unary(values, node, "LeakyRelu");
  if (op == "QLinearSoftmax") return unary(values, node, "Softmax", {"opset"});
  if (op == "QLinearReduceMean") return unary(values, node, "ReduceMean");
  return input_error("expected a QLinear operator with a form on floats, found this one");
}

// Too small to change another value in float32, but large enough that a value over the root, and
// both slopes, are finite.
constexpr float kMinVariance = 1e-30f;

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

bool is_known(const onnx::NodeProto& node) {
  const std::string domain = short_domain(node.domain());
  return domain.empty() || domain == kMicrosoft;
}

bool is(const onnx::NodeProto& node, const char* op) {
  return is_known(node) && node.op_type() == op;
}

bool is_any(const onnx::NodeProto& node, std::initializer_list<const char*> ops) {
  return std::ranges::any_of(ops, [&](const char* op) { return is(node, op); });
}

// Returns whether it moves or chooses elements from the first input (Concat: from all), so rounding
// commutes.
bool moves(const onnx::NodeProto& node) {
  return short_domain(node.domain()).empty() &&
         is_any(node,
                {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "MaxPool",
                 "Slice", "Gather", "Expand", "Split", "DepthToSpace", "SpaceToDepth", "Concat",
                 "GatherElements", "GatherND", "Tile", "ReduceMax", "ReduceMin"});
}

// Returns whether the graph has operators on integers that this pass removes.
bool has_quantization(const onnx::GraphProto& graph) {
  return std::ranges::any_of(graph.node(), [](const onnx::NodeProto& node) {
    return is_known(node) &&
           (node.op_type().starts_with("QLinear") ||
            is_any(node, {"QuantizeLinear", "DequantizeLinear", "QGemm", "DynamicQuantizeLinear",
                          "MatMulInteger", "ConvInteger", "MatMulIntegerToFloat",
                          "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}));
  });
}

class Dequantizer : QuantizedValues {
 public:
  Dequantizer(onnx::ModelProto& model, const OnnxFile& file) : QuantizedValues(model, file) {
    for (const auto& tensor : graph_.initializer()) types_[tensor.name()] = tensor.data_type();
    for (const auto& node : graph_.node()) read_.insert(node.input().begin(), node.input().end());
  }

  Status run() {
    Nodes nodes;
    nodes.Swap(graph_.mutable_node());
    for (const auto& node : nodes) {
      for (const std::string& name : node.output()) makers_[name] = &node;
    }
    for (auto& node : nodes) {
      OFSDP_RETURN_IF_ERROR(take(node).with_prefix(
          format_text("node '{}' ({})", printable(name_of(node)), printable(operator_name(node)))));
    }
    set_types();
    return ok_status();
  }

 private:
  static std::string name_of(const onnx::NodeProto& node) {
    return node.name().empty() && node.output_size() > 0 ? node.output(0) : node.name();
  }

  Status take(onnx::NodeProto& node) {
    if (is_known(node)) {
      const std::string& op = node.op_type();
      if (op == "QuantizeLinear") return quantize(node);
      if (op == "DequantizeLinear") return dequantize(node);
      if (op == "DynamicQuantizeLinear") return dynamic_quantize(node);
      if (op == "MatMulInteger" || op == "ConvInteger") return integer_product(node);
      if (op == "MatMulIntegerToFloat") return product_to_float(node);
      if (op == "DynamicQuantizeMatMul") return dynamic_product(node);
      if (op == "DynamicQuantizeLSTM") return dynamic_lstm(node);
      if (op == "QGemm" || op.starts_with("QLinear")) return lower_qlinear(*this, node);
    }
    const auto reads = [&](const std::string& name) { return carried_.contains(name); };
    if (node.input_size() == 0) return keep(node);
    if (is(node, "Sqrt") && floats_.contains(node.input(0))) return root(node);
    if (is(node, "Cast") && scaled_.contains(node.input(0))) return pass(node, node.input(0));
    if (is(node, "Add") && node.input_size() == 2) {
      for (int i = 0; i < 2; ++i) {
        if (scaled_.contains(node.input(i))) return add_integers(node, i);
      }
    }
    if (is(node, "Cast") && weights_.contains(node.input(0))) {
      return follow(weights_.at(node.input(0)), node);
    }
    if (is(node, "Sub") && floated_.contains(node.input(0))) {
      return follow(floated_.at(node.input(0)), node);
    }
    if (is(node, "Mul") && node.input_size() == 2) {
      for (const std::string& name : node.input()) {
        if (cast_.contains(name)) return pass(node, name);
        if (floated_.contains(name)) return multiply(*floated_.at(name), node);
      }
    }
    if (moves(node) && reads(node.input(0))) return move(node);
    if (is(node, "Pad") && reads(node.input(0))) return pad(node);
    if (moves(node) && dynamic_.contains(node.input(0))) {
      dynamic_.insert(node.output(0));
      touched_.insert(node.output(0));
      return keep(node);
    }
    for (const std::string& name : node.input()) {
      OFSDP_REJECT_IF(reads(name) || dynamic_.contains(name) || scaled_.contains(name),
                      "expected DequantizeLinear to read the integers '{}', found this operator",
                      printable(name));
    }
    return keep(node);
  }

  Status keep(const onnx::NodeProto& node) {
    *graph_.add_node() = node;
    return ok_status();
  }

  // Skips the Cast and the Mul after an integer product: their result exists already.
  Status pass(const onnx::NodeProto& node, const std::string& value) {
    add("Identity", {value}, node.output(0));
    if (node.op_type() == "Cast") cast_.insert(node.output(0));
    return ok_status();
  }

  // Drops the Cast and the Sub before the Mul that makes a weight's values, which alone reads them.
  Status follow(const Initializer* weight, const onnx::NodeProto& node) {
    floated_[node.output(0)] = weight;
    return ok_status();
  }

  Status multiply(const Initializer& weight, const onnx::NodeProto& node) {
    const Quantization& q = *weight.quantization;
    OFSDP_ASSIGN_OR_RETURN(
        const std::string value,
        weight_value(weight, {q.scale, q.zero_point, q.onnx_type, q.axis, q.block_size}));
    add("Identity", {value}, node.output(0));
    return ok_status();
  }

  // Returns whether QuantizeLinear and DequantizeLinear in this type become floats.
  static bool becomes_float(int onnx_type) {
    const DType carrier = integer_carrier(onnx_type);
    return carrier != DType::kUndefined && carrier != DType::kInt32;
  }

  // Returns whether a DequantizeLinear can become Cast, Sub and Mul, if the integers are neither a
  // weight nor quantized here.
  bool is_plain(const QuantizationPair& pair) const {
    const Initializer* scale = file_.find_constant(pair.scale);
    if (scale == nullptr || scale->dtype != DType::kFloat32) return false;
    const auto scales = file_.scales(pair.scale);
    if (!scales.ok()) return true;  // reading them reports the error
    return scales->size() == 1 && pair.block_size == 0 &&
           integer_carrier(pair.onnx_type) != DType::kUndefined;
  }

  Status quantize(const onnx::NodeProto& node) {
    if (!read_.contains(node.output(0))) return keep(node);
    OFSDP_ASSIGN_OR_RETURN(QuantizationPair pair, pair_at(node, 1, int_attribute(node, "axis", 1)));
    pair.block_size = int_attribute(node, "block_size", 0);
    const auto type = static_cast<int>(int_attribute(node, "output_dtype", 0));
    if (pair.zero_point.empty() && type != 0) pair.onnx_type = type;
    if (is_narrow(dtype_from_onnx_number(pair.onnx_type)) && !becomes_float(pair.onnx_type)) {
      return keep(node);
    }
    OFSDP_REJECT_IF(!becomes_float(pair.onnx_type),
                    "expected integers of 4, 8 or 16 bits, found {}", integer_name(pair.onnx_type));
    return quantized_to(node.input(0), pair, node.output(0));
  }

  Status dequantize(const onnx::NodeProto& node) {
    const std::string& name = node.input(0);
    QuantizationPair pair{input_or_none(node, 1), input_or_none(node, 2)};
    pair.axis = int_attribute(node, "axis", 1);
    pair.block_size = int_attribute(node, "block_size", 0);
    const auto type = types_.find(name);
    const int otherwise = type != types_.end()      ? type->second
                          : carried_.contains(name) ? carried_.at(name).onnx_type
                                                    : int{onnx::TensorProto::UINT8};
    const bool computed = !weights_.contains(name) && !carried_.contains(name);
    if (!dynamic_.contains(name)) {
      auto known = type_of(pair.zero_point, otherwise);
      if (computed && !known.ok()) return keep(node);
      OFSDP_ASSIGN_OR_RETURN(pair.onnx_type, std::move(known));
      if (computed && !is_plain(pair)) return keep(node);
    }
    OFSDP_ASSIGN_OR_RETURN(const std::string value, operand(name, pair));
    add("Identity", {value}, node.output(0));
    const auto scale = types_.find(pair.scale);
    if (scale != types_.end() && scale->second == onnx::TensorProto::FLOAT) {
      floats_.insert(node.output(0));
    }
    return ok_status();
  }

  // Rounding takes a small variance to 0, even with epsilon. A value divided by the root becomes
  // infinite and is clipped; backward, the clipped value's 0 times the infinite slopes of division
  // and root would be NaN. Divided by a tiny root, the value is clipped in the same way, and the
  // gradient is 0.
  Status root(const onnx::NodeProto& node) {
    const std::string base = node.output(0) + "//", above = fresh(base + "above_0");
    add("Add", {node.input(0), scalar(base + "least", kMinVariance)}, above);
    onnx::NodeProto& made = *graph_.add_node();
    made = node;
    made.set_input(0, above);
    return ok_status();
  }

  Status move(const onnx::NodeProto& node) {
    const QuantizationPair& pair = carried_.at(node.input(0));
    for (int i = 1; i < node.input_size() && is(node, "Concat"); ++i) {
      const auto found = carried_.find(node.input(i));
      OFSDP_REJECT_IF(found == carried_.end(), "'{}': expected quantized values, found others",
                      printable(node.input(i)));
      OFSDP_RETURN_IF_ERROR(check_same(node.input(i), found->second, pair));
    }
    for (const std::string& name : node.output()) {
      carried_[name] = pair;
      touched_.insert(name);
    }
    return keep(node);
  }

  // The integer that fills the border becomes the float that it represents.
  Status pad(const onnx::NodeProto& node) {
    const QuantizationPair& pair = carried_.at(node.input(0));
    OFSDP_ASSIGN_OR_RETURN(const std::vector<float> scales, file_.scales(pair.scale));
    std::vector<int64_t> zero{0}, border{0};
    if (!pair.zero_point.empty()) {
      OFSDP_ASSIGN_OR_RETURN(zero, file_.zero_points(pair.zero_point, pair.onnx_type, 1));
    }
    if (const std::string value = input_or_none(node, 2); !value.empty()) {
      OFSDP_ASSIGN_OR_RETURN(border, file_.zero_points(value, pair.onnx_type, 1));
    }
    OFSDP_REJECT_IF(scales.size() != 1, "expected values with one scale, found {}", scales.size());
    const auto filled = static_cast<float>(border[0] - zero[0]) * scales[0];
    auto& made = add("Pad",
                     {node.input(0), node.input(1), scalar(node.output(0) + "//border", filled),
                      input_or_none(node, 3)},
                     node.output(0));
    copy_attributes(node, made);
    carried_[node.output(0)] = QuantizationPair(pair);
    touched_.insert(node.output(0));
    return ok_status();
  }

  // Computes scale and zero point by ONNX's formula. They are constants for backward, because
  // FakeQuantize gives them no gradient.
  void dynamic_pair(const std::string& x, const std::string& scale, const std::string& zero) {
    const std::string base = scale + "//";
    const std::string none = scalar(base + "0", 0), one = scalar(base + "1", 1),
                      steps = scalar(base + "255", 255);
    const auto step = [&](const char* op, const std::vector<std::string>& inputs,
                          const char* name) -> std::string {
      const std::string made = fresh(base + name);
      auto& node = add(op, inputs, made);
      if (inputs.size() == 1 && std::string(op).starts_with("Reduce")) {
        add_attribute(node, "keepdims", int64_t{0});
      }
      return made;
    };
    const std::string least = step("Min", {step("ReduceMin", {x}, "least"), none}, "lowest");
    const std::string most = step("Max", {step("ReduceMax", {x}, "most"), none}, "highest");
    const std::string range = step("Sub", {most, least}, "range");
    const std::string flat = step("Equal", {range, none}, "flat");
    add("Where", {flat, one, step("Div", {range, steps}, "step")}, scale);
    add("Round", {step("Div", {step("Sub", {none, least}, "below"), scale}, "ratio")}, zero);
  }

  Status dynamic_quantize(const onnx::NodeProto& node) {
    if (!read_.contains(node.output(0))) return keep(node);
    const std::string scale = node.output_size() > 1 && !node.output(1).empty()
                                  ? node.output(1)
                                  : fresh(node.output(0) + "//scale");
    const std::string zero = fresh(node.output(0) + "//zero");
    dynamic_pair(node.input(0), scale, zero);
    fake_with(node.input(0), scale, zero, QuantizationPair{scale, zero}, node.output(0), false);
    dynamic_.insert(node.output(0));
    if (node.output_size() > 2) dynamic_zeros_.insert(node.output(2));
    touched_.insert(scale);
    return ok_status();
  }

  Result<std::string> weight_operand(const std::string& name, const std::string& zero) {
    const auto weight = weights_.find(name);
    if (weight == weights_.end()) {
      return input_error(
          "expected a weight whose scale a Mul after the product's Cast applies, found '{}'",
          printable(name));
    }
    const Quantization& q = *weight->second->quantization;
    return weight_value(*weight->second, {q.scale, zero, q.onnx_type, q.axis, q.block_size});
  }

  Status integer_product(const onnx::NodeProto& node) {
    OFSDP_REJECT_IF(!dynamic_.contains(node.input(0)),
                    "expected DynamicQuantizeLinear before it, found '{}'",
                    printable(node.input(0)));
    const std::string x_zero = input_or_none(node, 2);
    OFSDP_REJECT_IF(!dynamic_zeros_.contains(x_zero),
                    "expected the zero point of DynamicQuantizeLinear, found '{}'",
                    printable(x_zero));
    OFSDP_ASSIGN_OR_RETURN(const std::string weight,
                           weight_operand(node.input(1), input_or_none(node, 3)));
    const bool conv = node.op_type() == "ConvInteger";
    auto& product = add(conv ? "Conv" : "MatMul", {node.input(0), weight}, node.output(0));
    copy_attributes(node, product);
    touched_.insert(node.output(0));
    scaled_.insert(node.output(0));
    return ok_status();
  }

  Status product_to_float(const onnx::NodeProto& node) {
    OFSDP_REJECT_IF(!dynamic_.contains(node.input(0)) && !carried_.contains(node.input(0)),
                    "expected quantized values, found '{}'", printable(node.input(0)));
    OFSDP_ASSIGN_OR_RETURN(const std::string weight,
                           weight_with(node.input(1), node.input(3), input_or_none(node, 5)));
    return with_bias(node, weight, input_or_none(node, 6));
  }

  Result<std::string> weight_with(const std::string& name, const std::string& scale,
                                  const std::string& zero) {
    const auto weight = weights_.find(name);
    OFSDP_REJECT_IF(weight == weights_.end(), "expected a weight of the file, found '{}'",
                    printable(name));
    QuantizationPair pair{scale, zero};
    return weight_value(*weight->second, pair);
  }

  Status with_bias(const onnx::NodeProto& node, const std::string& weight,
                   const std::string& added) {
    const std::string product =
        added.empty() ? node.output(0) : fresh(node.output(0) + "//product");
    add("MatMul", {node.input(0), weight}, product);
    if (!added.empty()) add("Add", {product, added}, node.output(0));
    return ok_status();
  }

  // Returns x, quantized as DynamicQuantizeLinear does. `base`: names of new values begin with it.
  std::string dynamically_quantized(const std::string& x, const std::string& base) {
    const std::string made = fresh(base + "//quantized"), scale = fresh(made + "//scale"),
                      zero = fresh(made + "//zero");
    dynamic_pair(x, scale, zero);
    fake_with(x, scale, zero, QuantizationPair{scale, zero}, made, false);
    return made;
  }

  Status dynamic_product(onnx::NodeProto& node) {
    OFSDP_ASSIGN_OR_RETURN(const std::string weight,
                           weight_with(node.input(1), node.input(2), input_or_none(node, 3)));
    const std::string added = input_or_none(node, 4);
    node.set_input(0, dynamically_quantized(node.input(0), node.output(0)));
    return with_bias(node, weight, added);
  }

  // Inputs are LSTM's, with W and R as [directions, in, 4 hidden], then scale and zero point of
  // each.
  Status dynamic_lstm(const onnx::NodeProto& node) {
    constexpr int kOfLstm = 8;
    std::vector<std::string> inputs;
    for (int i = 0; i < kOfLstm; ++i) inputs.push_back(input_or_none(node, i));
    inputs[0] = dynamically_quantized(inputs[0], name_of(node));
    for (int i = 1; i <= 2; ++i) {
      const int scale = kOfLstm + 2 * (i - 1);
      OFSDP_ASSIGN_OR_RETURN(
          const std::string weight,
          weight_with(node.input(i), input_or_none(node, scale), input_or_none(node, scale + 1)));
      inputs[static_cast<size_t>(i)] = fresh(weight + "//turned");
      add_attribute(add("Transpose", {weight}, inputs[static_cast<size_t>(i)]), "perm",
                    std::vector<int64_t>{0, 2, 1});
    }
    auto& made = add("RoundedLSTM", inputs, node.output(0));
    made.set_domain("ofsdp");
    for (int i = 1; i < node.output_size(); ++i) made.add_output(node.output(i));
    copy_attributes(node, made);
    return ok_status();
  }

  // The node that makes the value, if it is `op`.
  const onnx::NodeProto* maker(const std::string& name, const char* op) const {
    const auto found = makers_.find(name);
    return found != makers_.end() && is(*found->second, op) ? found->second : nullptr;
  }

  // A bias that Div by the product's scale, Floor and Cast made integers, maybe through Reshape:
  // the same floats, with a gradient that passes straight through. Input `product` is the product.
  Status add_integers(const onnx::NodeProto& node, int product) {
    const std::string& name = node.input(1 - product);
    const onnx::NodeProto* shaped = maker(name, "Reshape");
    const onnx::NodeProto* cast = maker(shaped != nullptr ? shaped->input(0) : name, "Cast");
    const onnx::NodeProto* floor = cast != nullptr ? maker(cast->input(0), "Floor") : nullptr;
    const onnx::NodeProto* ratio = floor != nullptr ? maker(floor->input(0), "Div") : nullptr;
    OFSDP_REJECT_IF(ratio == nullptr,
                    "expected integers that Div, Floor and Cast make of a bias, found '{}'",
                    printable(name));
    std::string bias = rounded_down(ratio->input(0), ratio->input(1));
    if (shaped != nullptr) {
      const std::string made = fresh(bias + "//shaped");
      copy_attributes(*shaped, add("Reshape", {bias, input_or_none(*shaped, 1)}, made));
      bias = made;
    }
    add("Add", {node.input(product), bias}, node.output(0));
    touched_.insert(node.output(0));
    scaled_.insert(node.output(0));
    return ok_status();
  }

  // Returns floor(x / scale) * scale. Where x / scale is no integer, that is x - scale / 2 rounded
  // to the nearest; an x of 0 stays 0, since halves are rounded to even. The scale, a value of the
  // batch, is a constant for backward: -8 of it are what clipping -1e30 to 4 bits gives.
  std::string rounded_down(const std::string& x, const std::string& scale) {
    const std::string base = x + "//";
    const std::string far = fresh(base + "far"), steps = fresh(base + "steps"),
                      half = fresh(base + "half"), low = fresh(base + "low"),
                      made = fresh(base + "integers");
    QuantizationPair pair{scale, ""};
    pair.axis = 0;
    add("Sub", {x, scalar(base + "1e30", 1e30f)}, far);
    pair.onnx_type = onnx::TensorProto::INT4;
    fake_with(far, scale, "", pair, steps, false);
    add("Mul", {steps, scalar(base + "sixteenth", 1.0f / 16)}, half);
    add("Add", {x, half}, low);
    pair.onnx_type = onnx::TensorProto::INT32;
    fake_with(low, scale, "", pair, made, false);
    return made;
  }

  std::map<std::string, int> types_;  // initializer types
  std::set<std::string> read_;        // values that nodes read
  std::set<std::string> dynamic_zeros_;
  std::set<std::string> scaled_;                          // products that need no further scale
  std::set<std::string> cast_;                            // the same, after their Cast
  std::set<std::string> floats_;                          // float32 results from DequantizeLinear
  std::map<std::string, const onnx::NodeProto*> makers_;  // in the file
  // Weights after their Cast, or Cast and Sub.
  std::map<std::string, const Initializer*> floated_;
};

}  // namespace

Status dequantize_graph(onnx::ModelProto& model, const OnnxFile& file) {
  const bool weights = std::ranges::any_of(file.initializers(),
                                           [](const auto& w) { return w.quantization != nullptr; });
  if (!weights && !has_quantization(model.graph())) return ok_status();
  OFSDP_RETURN_IF_ERROR(Dequantizer(model, file).run());
  const auto own = [](const auto& import) { return import.domain() == "ofsdp"; };
  if (std::ranges::any_of(model.opset_import(), own)) return ok_status();
  auto& import = *model.add_opset_import();
  import.set_domain("ofsdp");
  import.set_version(1);
  return ok_status();
}

}  // namespace ofsdp::importer
