#include "importer/normalize/quantized_graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "importer/file/integer_codec.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

// How the integers of a value stand for floats.
struct Pair {
  std::string scale, zero_point;
  int onnx_type = onnx::TensorProto::UINT8;
  int64_t axis = 1, block_size = 0;
};

bool is_known(const onnx::NodeProto& node) {
  const std::string domain = short_domain(node.domain());
  return domain.empty() || domain == "com.microsoft";
}

bool is(const onnx::NodeProto& node, const char* op) {
  return is_known(node) && node.op_type() == op;
}

bool is_any(const onnx::NodeProto& node, std::initializer_list<const char*> ops) {
  return std::ranges::any_of(ops, [&](const char* op) { return is(node, op); });
}

// Moves or chooses elements of its first input (Concat: of all), which rounding does not disturb.
bool moves(const onnx::NodeProto& node) {
  return short_domain(node.domain()).empty() &&
         is_any(node,
                {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "MaxPool",
                 "Slice", "Gather", "Expand", "Split", "DepthToSpace", "SpaceToDepth", "Concat",
                 "GatherElements", "GatherND", "Tile", "ReduceMax", "ReduceMin"});
}

// Returns whether the graph has operators on integers that this pass takes away.
bool has_quantization(const onnx::GraphProto& graph) {
  return std::ranges::any_of(graph.node(), [](const onnx::NodeProto& node) {
    return is_known(node) && (node.op_type().starts_with("QLinear") ||
                              is_any(node, {"QuantizeLinear", "DequantizeLinear", "QGemm",
                                            "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger",
                                            "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}));
  });
}

class Dequantizer {
 public:
  Dequantizer(onnx::ModelProto& model, const OnnxFile& file)
      : graph_(*model.mutable_graph()), file_(file) {
    for (const Initializer& weight : file.initializers()) {
      if (weight.quantization != nullptr) weights_[weight.name] = &weight;
    }
    for (const auto& node : graph_.node()) {
      for (const std::string& name : node.output()) taken_.insert(name);
    }
    for (const auto& tensor : graph_.initializer()) types_[tensor.name()] = tensor.data_type();
  }

  Status run() {
    Nodes nodes;
    nodes.Swap(graph_.mutable_node());
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

  // --- new nodes ---

  onnx::NodeProto& add(const std::string& op, const std::vector<std::string>& inputs,
                       const std::string& output) {
    auto& node = *graph_.add_node();
    node.set_op_type(op);
    node.set_name(output);
    for (const std::string& name : inputs) node.add_input(name);
    while (node.input_size() > 0 && node.input(node.input_size() - 1).empty()) {
      node.mutable_input()->RemoveLast();
    }
    node.add_output(output);
    return node;
  }

  std::string fresh(const std::string& name) {
    std::string made = name;
    for (int i = 1; !taken_.insert(made).second; ++i) made = format_text("{}.{}", name, i);
    return made;
  }

  void copy_attributes(const onnx::NodeProto& from, onnx::NodeProto& to,
                       std::initializer_list<const char*> without = {}) {
    for (const auto& attribute : from.attribute()) {
      const bool left =
          std::ranges::any_of(without, [&](const char* name) { return attribute.name() == name; });
      if (!left) *to.add_attribute() = attribute;
    }
  }

  std::string constant(const std::string& name, const std::vector<float>& values,
                       const Shape& shape) {
    const std::string made = fresh(name);
    *graph_.add_initializer() = tensor_proto(made, {DType::kFloat32, shape}, values.data());
    return made;
  }

  std::string scalar(const std::string& name, float value) {
    return constant(name, {value}, Shape{});
  }

  // Zero points as floats; "": all are 0.
  Result<std::string> zero_of(const Pair& pair) {
    OFSDP_ASSIGN_OR_RETURN(const std::vector<float> scales, file_.scales(pair.scale));
    if (pair.zero_point.empty()) return std::string();
    const auto known = zeros_.find(pair.zero_point);
    if (known != zeros_.end()) return known->second;
    OFSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> integers,
                           file_.zero_points(pair.zero_point, pair.onnx_type, scales.size()));
    const bool zero = std::ranges::all_of(integers, [](int64_t z) { return z == 0; });
    const std::vector<float> floats(integers.begin(), integers.end());
    const Shape shape{static_cast<int64_t>(floats.size())};
    return zeros_[pair.zero_point] =
               zero ? "" : constant(pair.zero_point + "//float", floats, shape);
  }

  Status fake(const std::string& x, const Pair& pair, const std::string& output,
              bool weight = false) {
    OFSDP_ASSIGN_OR_RETURN(const std::string zero, zero_of(pair));
    fake_with(x, pair.scale, zero, pair, output, weight);
    return ok_status();
  }

  void fake_with(const std::string& x, const std::string& scale, const std::string& zero,
                 const Pair& pair, const std::string& output, bool weight) {
    auto& node = add("FakeQuantize", {x, scale, zero}, output);
    node.set_domain("ofsdp");
    Quantization range;
    range.onnx_type = pair.onnx_type;
    add_attribute(node, "lo", range.lowest());
    add_attribute(node, "hi", range.greatest());
    add_attribute(node, "axis", pair.axis);
    if (pair.block_size != 0) add_attribute(node, "block_size", pair.block_size);
    if (weight) add_attribute(node, "weight", int64_t{1});
    touched_.insert(output);
  }

  Status quantized_to(const std::string& x, const Pair& pair, const std::string& output) {
    OFSDP_RETURN_IF_ERROR(fake(x, pair, output));
    carried_[output] = pair;
    return ok_status();
  }

  // --- operands ---

  // The type of a zero point, a constant of the file; uint8: there is none.
  Result<int> type_of(const std::string& zero_point, int otherwise) const {
    if (zero_point.empty()) return otherwise;
    const Initializer* zero = file_.find_constant(zero_point);
    OFSDP_REJECT_IF(zero == nullptr || is_floating(zero->dtype),
                    "expected a zero point that is a constant of integers, found '{}'",
                    printable(zero_point));
    if (zero->bits == 4) {
      return zero->dtype == DType::kInt8 ? int{onnx::TensorProto::INT4}
                                         : int{onnx::TensorProto::UINT4};
    }
    return static_cast<int>(number_of_dtype(zero->dtype));
  }

  Result<Pair> pair_at(const onnx::NodeProto& node, int scale, int64_t axis) const {
    Pair pair{input_or_none(node, scale), input_or_none(node, scale + 1)};
    pair.axis = axis;
    OFSDP_ASSIGN_OR_RETURN(pair.onnx_type, type_of(pair.zero_point, onnx::TensorProto::UINT8));
    return pair;
  }

  // Checks that a value was quantized as its reader takes it.
  Status check_same(const std::string& value, const Pair& made, const Pair& read) const {
    OFSDP_REJECT_IF(made.onnx_type != read.onnx_type, "'{}': expected a zero point of {}, found {}",
                    printable(value), integer_name(made.onnx_type), integer_name(read.onnx_type));
    OFSDP_ASSIGN_OR_RETURN(const auto made_scales, file_.scales(made.scale));
    OFSDP_ASSIGN_OR_RETURN(const auto read_scales, file_.scales(read.scale));
    OFSDP_REJECT_IF(made_scales != read_scales,
                    "'{}': expected the scale it was quantized with ('{}'), found '{}'",
                    printable(value), printable(made.scale), printable(read.scale));
    std::vector<int64_t> zeros[2];
    for (size_t i = 0; i < 2; ++i) {
      const Pair& pair = i == 0 ? made : read;
      if (pair.zero_point.empty()) {
        zeros[i].assign(made_scales.size(), 0);
      } else {
        OFSDP_ASSIGN_OR_RETURN(
            zeros[i], file_.zero_points(pair.zero_point, pair.onnx_type, made_scales.size()));
      }
    }
    OFSDP_REJECT_IF(zeros[0] != zeros[1],
                    "'{}': expected the zero point it was quantized with ('{}'), found '{}'",
                    printable(value), printable(made.zero_point), printable(read.zero_point));
    return ok_status();
  }

  // The float that operand `i` with its scale at input `scale` stands for.
  Result<std::string> operand(const onnx::NodeProto& node, int i, int scale, int64_t axis) {
    const std::string& name = node.input(i);
    OFSDP_ASSIGN_OR_RETURN(Pair pair, pair_at(node, scale, axis));
    return operand(name, std::move(pair));
  }

  Result<std::string> operand(const std::string& name, Pair pair) {
    if (const auto weight = weights_.find(name); weight != weights_.end()) {
      return weight_value(*weight->second, std::move(pair));
    }
    if (dynamic_.contains(name)) return name;
    if (const auto made = carried_.find(name); made != carried_.end()) {
      OFSDP_RETURN_IF_ERROR(check_same(name, made->second, pair));
      return name;
    }
    return plain_integers(name, pair);
  }

  // Integers that are neither a weight nor made by a quantization: (q - zero_point) * scale.
  Result<std::string> plain_integers(const std::string& name, const Pair& pair) {
    OFSDP_ASSIGN_OR_RETURN(const std::vector<float> scales, file_.scales(pair.scale));
    OFSDP_REJECT_IF(
        scales.size() != 1,
        "'{}': expected a weight that is dequantized in one way, or one scale, found {}",
        printable(name), scales.size());
    OFSDP_ASSIGN_OR_RETURN(const std::string zero, zero_of(pair));
    const std::string base = name + "//float";
    std::string value = fresh(base);
    add_attribute(add("Cast", {name}, value), "to", int64_t{onnx::TensorProto::FLOAT});
    if (!zero.empty()) {
      const std::string shifted = fresh(base);
      add("Sub", {value, zero}, shifted);
      value = shifted;
    }
    const std::string scaled = fresh(base);
    add("Mul", {value, pair.scale}, scaled);
    return scaled;
  }

  Result<std::string> weight_value(const Initializer& weight, Pair pair) {
    const Quantization& q = *weight.quantization;
    if (!q.rounds) return weight.name;
    if (const auto made = made_weights_.find(weight.name); made != made_weights_.end()) {
      return made->second;
    }
    pair.onnx_type = q.onnx_type;
    pair.axis = q.axis;
    pair.block_size = q.block_size;
    const std::string value = fresh(weight.name + "//fake");
    OFSDP_RETURN_IF_ERROR(fake(weight.name, pair, value, true));
    return made_weights_[weight.name] = value;
  }

  Status check_bias(const onnx::NodeProto& node, int i) const {
    const std::string name = input_or_none(node, i);
    if (name.empty() || weights_.contains(name)) return ok_status();
    return input_error("expected a bias in int32 that this node alone reads, found '{}'",
                       printable(name));
  }

  // --- nodes ---

  Status take(onnx::NodeProto& node) {
    if (is_known(node)) {
      const std::string& op = node.op_type();
      if (op == "QuantizeLinear") return quantize(node);
      if (op == "DequantizeLinear") return dequantize(node);
      if (op == "DynamicQuantizeLinear") return dynamic_quantize(node);
      if (op == "MatMulInteger" || op == "ConvInteger") return integer_product(node);
      if (op == "MatMulIntegerToFloat") return product_to_float(node);
      if (op == "DynamicQuantizeMatMul") return dynamic_product(node);
      if (op == "QGemm" || op.starts_with("QLinear")) return qlinear(node);
    }
    const auto reads = [&](const std::string& name) { return carried_.contains(name); };
    if (node.input_size() == 0) return keep(node);
    if (is(node, "Cast") && scaled_.contains(node.input(0))) return pass(node, node.input(0));
    if (is(node, "Mul") && node.input_size() == 2) {
      for (const std::string& name : node.input()) {
        if (cast_.contains(name)) return pass(node, name);
      }
    }
    if (moves(node) && reads(node.input(0))) return move(node);
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

  // The Cast and the Mul after a product of integers: what they made is there already.
  Status pass(const onnx::NodeProto& node, const std::string& value) {
    add("Identity", {value}, node.output(0));
    if (node.op_type() == "Cast") cast_.insert(node.output(0));
    return ok_status();
  }

  Status quantize(const onnx::NodeProto& node) {
    OFSDP_ASSIGN_OR_RETURN(Pair pair, pair_at(node, 1, int_attribute(node, "axis", 1)));
    pair.block_size = int_attribute(node, "block_size", 0);
    const auto type = static_cast<int>(int_attribute(node, "output_dtype", 0));
    if (pair.zero_point.empty() && type != 0) pair.onnx_type = type;
    OFSDP_REJECT_IF(integer_carrier(pair.onnx_type) == DType::kUndefined ||
                        integer_carrier(pair.onnx_type) == DType::kInt32,
                    "expected integers of 4, 8 or 16 bits, found {}", integer_name(pair.onnx_type));
    return quantized_to(node.input(0), pair, node.output(0));
  }

  Status dequantize(const onnx::NodeProto& node) {
    const std::string& name = node.input(0);
    Pair pair{input_or_none(node, 1), input_or_none(node, 2)};
    pair.axis = int_attribute(node, "axis", 1);
    pair.block_size = int_attribute(node, "block_size", 0);
    const auto type = types_.find(name);
    const int otherwise = type != types_.end()      ? type->second
                          : carried_.contains(name) ? carried_.at(name).onnx_type
                                                    : int{onnx::TensorProto::UINT8};
    if (!dynamic_.contains(name)) {
      OFSDP_ASSIGN_OR_RETURN(pair.onnx_type, type_of(pair.zero_point, otherwise));
    }
    OFSDP_ASSIGN_OR_RETURN(const std::string value, operand(name, pair));
    add("Identity", {value}, node.output(0));
    return ok_status();
  }

  Status move(const onnx::NodeProto& node) {
    const Pair& pair = carried_.at(node.input(0));
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

  // Scale and zero point of ONNX's formula; they are constants of backward, because FakeQuantize
  // gives them no gradient.
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
    const std::string scale = node.output_size() > 1 && !node.output(1).empty()
                                  ? node.output(1)
                                  : fresh(node.output(0) + "//scale");
    const std::string zero = fresh(node.output(0) + "//zero");
    dynamic_pair(node.input(0), scale, zero);
    fake_with(node.input(0), scale, zero, Pair{scale, zero}, node.output(0), false);
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
    Pair pair{scale, zero};
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

  Status dynamic_product(onnx::NodeProto& node) {
    OFSDP_ASSIGN_OR_RETURN(const std::string weight,
                           weight_with(node.input(1), node.input(2), input_or_none(node, 3)));
    const std::string x = fresh(node.output(0) + "//quantized"), scale = fresh(x + "//scale"),
                      zero = fresh(x + "//zero");
    dynamic_pair(node.input(0), scale, zero);
    fake_with(node.input(0), scale, zero, Pair{scale, zero}, x, false);
    const std::string added = input_or_none(node, 4);
    node.set_input(0, x);
    return with_bias(node, weight, added);
  }

  // --- QLinear* ---

  Status qlinear(const onnx::NodeProto& node) {
    const std::string& op = node.op_type();
    if (op == "QLinearConv") return conv(node);
    if (op == "QLinearMatMul") return binary(node, "MatMul", -1);
    if (op == "QLinearAdd") return binary(node, "Add", -1);
    if (op == "QLinearMul") return binary(node, "Mul", -1);
    if (op == "QGemm") return gemm(node);
    if (op == "QLinearConcat") return concat(node);
    if (op == "QLinearWhere") return where(node);
    if (op == "QLinearGlobalAveragePool")
      return unary(node, "GlobalAveragePool", {"channels_last"});
    if (op == "QLinearAveragePool") return unary(node, "AveragePool", {"channels_last"});
    if (op == "QLinearSigmoid") return unary(node, "Sigmoid");
    if (op == "QLinearLeakyRelu") return unary(node, "LeakyRelu");
    if (op == "QLinearSoftmax") return unary(node, "Softmax", {"opset"});
    if (op == "QLinearReduceMean") return unary(node, "ReduceMean");
    return input_error("expected a QLinear operator with a form on floats, found this one");
  }

  // The output's pair is at inputs `scale` and `scale` + 1.
  Status finish(const onnx::NodeProto& node, const std::string& value, int scale) {
    OFSDP_ASSIGN_OR_RETURN(const Pair pair, pair_at(node, scale, 1));
    return quantized_to(value, pair, node.output(0));
  }

  Status conv(const onnx::NodeProto& node) {
    OFSDP_ASSIGN_OR_RETURN(const std::string x, operand(node, 0, 1, 1));
    OFSDP_ASSIGN_OR_RETURN(const std::string w, operand(node, 3, 4, 0));
    OFSDP_RETURN_IF_ERROR(check_bias(node, 8));
    const std::string y = fresh(node.output(0) + "//float");
    copy_attributes(node, add("Conv", {x, w, input_or_none(node, 8)}, y));
    return finish(node, y, 6);
  }

  Status binary(const onnx::NodeProto& node, const char* op, int64_t axis) {
    OFSDP_ASSIGN_OR_RETURN(const std::string a, operand(node, 0, 1, axis));
    OFSDP_ASSIGN_OR_RETURN(const std::string b, operand(node, 3, 4, axis));
    const std::string y = fresh(node.output(0) + "//float");
    add(op, {a, b}, y);
    return finish(node, y, 6);
  }

  Status gemm(const onnx::NodeProto& node) {
    OFSDP_ASSIGN_OR_RETURN(const std::string a, operand(node, 0, 1, 1));
    OFSDP_ASSIGN_OR_RETURN(const std::string b, operand(node, 3, 4, 1));
    OFSDP_RETURN_IF_ERROR(check_bias(node, 6));
    const bool floats = input_or_none(node, 7).empty();
    const std::string y = floats ? node.output(0) : fresh(node.output(0) + "//float");
    copy_attributes(node, add("Gemm", {a, b, input_or_none(node, 6)}, y));
    return floats ? ok_status() : finish(node, y, 7);
  }

  Status concat(const onnx::NodeProto& node) {
    std::vector<std::string> values;
    for (int i = 2; i + 2 < node.input_size(); i += 3) {
      OFSDP_ASSIGN_OR_RETURN(const std::string x, operand(node, i, i + 1, 1));
      values.push_back(x);
    }
    const std::string y = fresh(node.output(0) + "//float");
    copy_attributes(node, add("Concat", values, y));
    return finish(node, y, 0);
  }

  Status where(const onnx::NodeProto& node) {
    OFSDP_ASSIGN_OR_RETURN(const std::string a, operand(node, 1, 2, 1));
    OFSDP_ASSIGN_OR_RETURN(const std::string b, operand(node, 4, 5, 1));
    const std::string y = fresh(node.output(0) + "//float");
    add("Where", {node.input(0), a, b}, y);
    return finish(node, y, 7);
  }

  Status unary(const onnx::NodeProto& node, const char* op,
               std::initializer_list<const char*> without = {}) {
    OFSDP_REJECT_IF(int_attribute(node, "channels_last", 0) != 0,
                    "attribute 'channels_last': expected 0, found 1");
    OFSDP_ASSIGN_OR_RETURN(const std::string x, operand(node, 0, 1, 1));
    const std::string y = fresh(node.output(0) + "//float");
    copy_attributes(node, add(op, {x}, y), without);
    return finish(node, y, 3);
  }

  // --- types of values that were integers ---

  void set_types() {
    for (auto* infos :
         {graph_.mutable_input(), graph_.mutable_output(), graph_.mutable_value_info()}) {
      for (auto& info : *infos) {
        if (!touched_.contains(info.name()) && !weights_.contains(info.name())) continue;
        info.mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
      }
    }
  }

  onnx::GraphProto& graph_;
  const OnnxFile& file_;
  std::map<std::string, const Initializer*> weights_;
  std::map<std::string, int> types_;  // of initializers
  std::set<std::string> taken_;
  std::map<std::string, Pair> carried_;  // integers in the file, floats now
  std::set<std::string> dynamic_;        // outputs of DynamicQuantizeLinear
  std::set<std::string> dynamic_zeros_;
  std::set<std::string> scaled_;  // products that need no scale any more
  std::set<std::string> cast_;    // and those after their Cast
  std::map<std::string, std::string> zeros_, made_weights_;
  std::set<std::string> touched_;
};

}  // namespace

Status dequantize_graph(onnx::ModelProto& model, const OnnxFile& file) {
  if (!has_quantization(model.graph())) return ok_status();
  OFSDP_RETURN_IF_ERROR(Dequantizer(model, file).run());
  const auto own = [](const auto& import) { return import.domain() == "ofsdp"; };
  if (std::ranges::any_of(model.opset_import(), own)) return ok_status();
  auto& import = *model.add_opset_import();
  import.set_domain("ofsdp");
  import.set_version(1);
  return ok_status();
}

}  // namespace ofsdp::importer
