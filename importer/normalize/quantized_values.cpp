#include <algorithm>

#include "importer/file/tensor_record.h"
#include "importer/normalize/quantized_graph.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

QuantizedValues::QuantizedValues(onnx::ModelProto& model, const OnnxFile& file)
    : graph_(*model.mutable_graph()), file_(file) {
  for (const Initializer& weight : file.initializers()) {
    if (weight.quantization != nullptr) weights_[weight.name] = &weight;
  }
  for (const auto& node : graph_.node()) {
    for (const std::string& name : node.output()) taken_.insert(name);
  }
}

onnx::NodeProto& QuantizedValues::add(const std::string& op, const std::vector<std::string>& inputs,
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

std::string QuantizedValues::fresh(const std::string& name) {
  std::string made = name;
  for (int i = 1; !taken_.insert(made).second; ++i) made = format_text("{}.{}", name, i);
  return made;
}

void QuantizedValues::copy_attributes(const onnx::NodeProto& from, onnx::NodeProto& to,
                                      std::initializer_list<const char*> without) {
  for (const auto& attribute : from.attribute()) {
    const bool left =
        std::ranges::any_of(without, [&](const char* name) { return attribute.name() == name; });
    if (!left) *to.add_attribute() = attribute;
  }
}

std::string QuantizedValues::constant(const std::string& name, const std::vector<float>& values,
                                      const Shape& shape) {
  const std::string made = fresh(name);
  *graph_.add_initializer() = tensor_proto(made, {DType::kFloat32, shape}, values.data());
  return made;
}

std::string QuantizedValues::scalar(const std::string& name, float value) {
  return constant(name, {value}, Shape{});
}

Result<std::string> QuantizedValues::zero_of(const QuantizationPair& pair) {
  OFSDP_ASSIGN_OR_RETURN(const std::vector<float> scales, file_.scales(pair.scale));
  if (pair.zero_point.empty()) return std::string();
  const auto known = zeros_.find(pair.zero_point);
  if (known != zeros_.end()) return known->second;
  OFSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> integers,
                         file_.zero_points(pair.zero_point, pair.onnx_type, scales.size()));
  const bool zero = std::ranges::all_of(integers, [](int64_t z) { return z == 0; });
  const std::vector<float> floats(integers.begin(), integers.end());
  const Shape shape{static_cast<int64_t>(floats.size())};
  return zeros_[pair.zero_point] = zero ? "" : constant(pair.zero_point + "//float", floats, shape);
}

Status QuantizedValues::fake(const std::string& x, const QuantizationPair& pair,
                             const std::string& output, bool weight) {
  OFSDP_ASSIGN_OR_RETURN(const std::string zero, zero_of(pair));
  fake_with(x, pair.scale, zero, pair, output, weight);
  return ok_status();
}

void QuantizedValues::fake_with(const std::string& x, const std::string& scale,
                                const std::string& zero, const QuantizationPair& pair,
                                const std::string& output, bool weight) {
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

Status QuantizedValues::quantized_to(const std::string& x, const QuantizationPair& pair,
                                     const std::string& output) {
  OFSDP_RETURN_IF_ERROR(fake(x, pair, output));
  carried_[output] = pair;
  return ok_status();
}

Result<int> QuantizedValues::type_of(const std::string& zero_point, int otherwise) const {
  if (zero_point.empty()) return otherwise;
  const Initializer* zero = file_.find_constant(zero_point);
  OFSDP_REJECT_IF(zero == nullptr || is_floating(zero->dtype),
                  "expected a zero point that is a constant of integers, found '{}'",
                  printable(zero_point));
  return stored_type(*zero);
}

Result<QuantizationPair> QuantizedValues::pair_at(const onnx::NodeProto& node, int scale,
                                                  int64_t axis) const {
  QuantizationPair pair{input_or_none(node, scale), input_or_none(node, scale + 1)};
  pair.axis = axis;
  OFSDP_ASSIGN_OR_RETURN(pair.onnx_type, type_of(pair.zero_point, onnx::TensorProto::UINT8));
  return pair;
}

Status QuantizedValues::check_same(const std::string& value, const QuantizationPair& made,
                                   const QuantizationPair& read) const {
  OFSDP_REJECT_IF(made.onnx_type != read.onnx_type, "'{}': expected a zero point of {}, found {}",
                  printable(value), integer_name(made.onnx_type), integer_name(read.onnx_type));
  OFSDP_ASSIGN_OR_RETURN(const auto made_scales, file_.scales(made.scale));
  OFSDP_ASSIGN_OR_RETURN(const auto read_scales, file_.scales(read.scale));
  OFSDP_REJECT_IF(made_scales != read_scales,
                  "'{}': expected the scale it was quantized with ('{}'), found '{}'",
                  printable(value), printable(made.scale), printable(read.scale));
  std::vector<int64_t> zeros[2];
  for (size_t i = 0; i < 2; ++i) {
    const QuantizationPair& pair = i == 0 ? made : read;
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

Result<std::string> QuantizedValues::operand(const onnx::NodeProto& node, int i, int scale,
                                             int64_t axis) {
  const std::string& name = node.input(i);
  OFSDP_ASSIGN_OR_RETURN(QuantizationPair pair, pair_at(node, scale, axis));
  return operand(name, std::move(pair));
}

Result<std::string> QuantizedValues::operand(const std::string& name, QuantizationPair pair) {
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

Result<std::string> QuantizedValues::plain_integers(const std::string& name,
                                                    const QuantizationPair& pair) {
  OFSDP_ASSIGN_OR_RETURN(const std::vector<float> scales, file_.scales(pair.scale));
  OFSDP_REJECT_IF(scales.size() != 1,
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

// Returns the zero points of a weight that Cast, Sub and Mul dequantize; "": all are 0.
std::string QuantizedValues::zero_of_product(const Quantization& q) {
  if (q.zero_points.empty()) return "";
  const auto stored = std::ranges::find(file_.initializers(), q.zero_point, &Initializer::name);
  const bool fits = stored != file_.initializers().end() && is_floating(stored->dtype) &&
                    stored->shape.numel() == std::ssize(q.zero_points);
  if (fits) return q.zero_point;
  const std::vector<float> zeros(q.zero_points.begin(), q.zero_points.end());
  return constant(q.zero_point + "//float", zeros, Shape{std::ssize(zeros)});
}

Result<std::string> QuantizedValues::weight_value(const Initializer& weight,
                                                  QuantizationPair pair) {
  const Quantization& q = *weight.quantization;
  if (!q.rounds) return weight.name;
  if (const auto made = made_weights_.find(weight.name); made != made_weights_.end()) {
    return made->second;
  }
  pair.onnx_type = q.onnx_type;
  pair.axis = q.axis;
  pair.block_size = q.block_size;
  const std::string value = fresh(weight.name + "//fake");
  if (q.multiplied) {
    const std::string zero = zero_of_product(q);
    fake_with(weight.name, pair.scale, zero, pair, value, true);
  } else {
    OFSDP_RETURN_IF_ERROR(fake(weight.name, pair, value, true));
  }
  return made_weights_[weight.name] = value;
}

Status QuantizedValues::check_bias(const onnx::NodeProto& node, int i) const {
  const std::string name = input_or_none(node, i);
  if (name.empty() || weights_.contains(name)) return ok_status();
  return input_error("expected a bias in int32 that this node alone reads, found '{}'",
                     printable(name));
}

void QuantizedValues::set_types() {
  for (auto* infos :
       {graph_.mutable_input(), graph_.mutable_output(), graph_.mutable_value_info()}) {
    for (auto& info : *infos) {
      if (!touched_.contains(info.name()) && !weights_.contains(info.name())) continue;
      info.mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
    }
  }
}

}  // namespace ofsdp::importer
