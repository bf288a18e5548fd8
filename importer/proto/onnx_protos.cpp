#include "importer/proto/onnx_protos.h"

#include <type_traits>
#include <variant>

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"

namespace ofsdp::importer {
namespace {

using A = onnx::AttributeProto;

// Small types occupy the low bytes in wide integers (onnx.proto, TensorProto).
template <typename Field>
std::vector<std::byte> low_bytes(const Field& field, size_t size) {
  std::vector<std::byte> bytes;
  for (const auto value : field) {
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), raw, raw + size);
  }
  return bytes;
}

std::vector<std::byte> typed_bytes(const onnx::TensorProto& tensor, DType dtype) {
  const size_t size = dtype_size(dtype);
  const uint32_t field = list_field(dtype);
  if (field == tensor_field::kFloatData) return low_bytes(tensor.float_data(), size);
  if (field == tensor_field::kDoubleData) return low_bytes(tensor.double_data(), size);
  if (field == tensor_field::kInt64Data) return low_bytes(tensor.int64_data(), size);
  if (field == tensor_field::kUint64Data) return low_bytes(tensor.uint64_data(), size);
  return low_bytes(tensor.int32_data(), size);
}

}  // namespace

Result<onnx::ModelProto> parse_model(const OnnxFile& file) {
  onnx::ModelProto model;
  if (model.ParseFromString(file.skeleton())) return model;
  return input_error("{}: is no ONNX model: it does not parse", file.path());
}

Result<ConstantPtr> constant_from_onnx(const onnx::TensorProto& tensor) {
  OFSDP_REJECT_IF(tensor.data_location() == onnx::TensorProto::EXTERNAL,
                  "tensor '{}': external data: expected for initializers alone", tensor.name());
  Constant constant;
  constant.desc.dtype = dtype_from_onnx_number(tensor.data_type());
  OFSDP_REJECT_IF(constant.desc.dtype == DType::kUndefined,
                  "tensor '{}' has ONNX type {}, which is not supported", tensor.name(),
                  tensor.data_type());
  const std::vector<int64_t> axes(tensor.dims().begin(), tensor.dims().end());
  OFSDP_RETURN_IF_ERROR(checked_numel(axes).status().with_prefix("tensor '" + tensor.name() + "'"));
  constant.desc.shape = Shape(axes);
  if (tensor.has_raw_data()) {
    const auto* raw = reinterpret_cast<const std::byte*>(tensor.raw_data().data());
    constant.bytes.assign(raw, raw + tensor.raw_data().size());
  } else {
    constant.bytes = typed_bytes(tensor, constant.desc.dtype);
  }
  if (is_narrow(constant.desc.dtype)) {
    const int64_t numel = constant.desc.numel();
    constant.bytes = unpacked_codes(constant.desc.dtype, constant.bytes, numel);
  }
  OFSDP_REJECT_IF(constant.bytes.size() != constant.desc.bytes(),
                  "tensor '{}' {} needs {} bytes, found {}", tensor.name(), constant.desc.text(),
                  constant.desc.bytes(), constant.bytes.size());
  return std::make_shared<const Constant>(std::move(constant));
}

Result<Attribute> attribute_from_onnx(const onnx::AttributeProto& attribute) {
  const auto list = [](const auto& field) {
    return std::vector<std::decay_t<decltype(*field.begin())>>(field.begin(), field.end());
  };
  const auto type = attribute.type();
  if (type == A::INT) return Attribute(static_cast<int64_t>(attribute.i()));
  if (type == A::FLOAT) return Attribute(attribute.f());
  if (type == A::STRING) return Attribute(attribute.s());
  if (type == A::INTS)
    return Attribute(std::vector<int64_t>(attribute.ints().begin(), attribute.ints().end()));
  if (type == A::FLOATS) return Attribute(list(attribute.floats()));
  if (type == A::STRINGS) return Attribute(list(attribute.strings()));
  OFSDP_REJECT_IF(type != A::TENSOR, "attribute '{}' of kind {} is not supported", attribute.name(),
                  A::AttributeType_Name(type));
  OFSDP_ASSIGN_OR_RETURN(auto constant, constant_from_onnx(attribute.t()));
  return Attribute(constant);
}

Result<Attributes> attributes_from_onnx(const onnx::NodeProto& node) {
  Attributes attributes;
  for (const auto& attribute : node.attribute()) {
    OFSDP_ASSIGN_OR_RETURN(Attribute value, attribute_from_onnx(attribute));
    attributes.set(attribute.name(), std::move(value));
  }
  return attributes;
}

std::string short_domain(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

std::string operator_name(const onnx::NodeProto& node) {
  const std::string domain = short_domain(node.domain());
  return domain.empty() ? node.op_type() : domain + "." + node.op_type();
}

const onnx::AttributeProto* find_attribute(const onnx::NodeProto& node, const std::string& name) {
  for (const auto& attribute : node.attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

int64_t int_attribute(const onnx::NodeProto& node, const std::string& name, int64_t otherwise) {
  const auto* attribute = find_attribute(node, name);
  return attribute == nullptr ? otherwise : attribute->i();
}

float float_attribute(const onnx::NodeProto& node, const std::string& name, float otherwise) {
  const auto* attribute = find_attribute(node, name);
  return attribute == nullptr ? otherwise : attribute->f();
}

std::string input_or_none(const onnx::NodeProto& node, int i) {
  return i < node.input_size() ? node.input(i) : "";
}

onnx::TensorProto tensor_proto(const std::string& name, const TensorDesc& desc, const void* bytes) {
  onnx::TensorProto tensor;
  tensor.set_name(name);
  tensor.set_data_type(onnx_number(desc.dtype));
  for (const int64_t axis : desc.shape.axes()) tensor.add_dims(axis);
  if (!is_narrow(desc.dtype)) {
    tensor.set_raw_data(bytes, desc.bytes());
    return tensor;
  }
  const auto packed = packed_codes(desc.dtype, static_cast<const std::byte*>(bytes), desc.numel());
  tensor.set_raw_data(packed.data(), packed.size());
  return tensor;
}

onnx::ValueInfoProto value_info(const std::string& name, const TensorDesc& desc) {
  onnx::ValueInfoProto info;
  info.set_name(name);
  set_tensor_type(*info.mutable_type(), onnx_number(desc.dtype), desc.shape.axes());
  return info;
}

void add_attribute(onnx::NodeProto& node, const std::string& name, const Attribute& value) {
  A& to = *node.add_attribute();
  to.set_name(name);
  constexpr A::AttributeType kTypes[] = {A::INT,    A::FLOAT,   A::STRING, A::INTS,
                                         A::FLOATS, A::STRINGS, A::TENSOR};
  to.set_type(kTypes[value.index()]);
  if (const auto* i = std::get_if<int64_t>(&value)) to.set_i(*i);
  if (const auto* f = std::get_if<float>(&value)) to.set_f(*f);
  if (const auto* s = std::get_if<std::string>(&value)) to.set_s(*s);
  const auto fill = [](auto* list, const auto* values) {
    if (values != nullptr) list->Add(values->begin(), values->end());
  };
  fill(to.mutable_ints(), std::get_if<std::vector<int64_t>>(&value));
  fill(to.mutable_floats(), std::get_if<std::vector<float>>(&value));
  fill(to.mutable_strings(), std::get_if<std::vector<std::string>>(&value));
  if (const auto* constant = std::get_if<ConstantPtr>(&value)) {
    *to.mutable_t() = tensor_proto("", (*constant)->desc, (*constant)->bytes.data());
  }
}

onnx::NodeProto constant_node(const std::string& name, onnx::TensorProto tensor) {
  onnx::NodeProto node;
  node.set_op_type("Constant");
  node.add_output(name);
  A& value = *node.add_attribute();
  value.set_name("value");
  value.set_type(A::TENSOR);
  *value.mutable_t() = std::move(tensor);
  return node;
}

}  // namespace ofsdp::importer
