#include "importer/proto/onnx_protos.h"

#include <type_traits>

namespace ofsdp::importer {
namespace {

using A = onnx::AttributeProto;

// Small types are in wide integers: their low bytes count (onnx.proto, TensorProto).
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
  switch (list_field(dtype)) {
    case tensor_field::kFloatData:
      return low_bytes(tensor.float_data(), size);
    case tensor_field::kDoubleData:
      return low_bytes(tensor.double_data(), size);
    case tensor_field::kInt64Data:
      return low_bytes(tensor.int64_data(), size);
    case tensor_field::kUint64Data:
      return low_bytes(tensor.uint64_data(), size);
    default:
      return low_bytes(tensor.int32_data(), size);
  }
}

}  // namespace

Result<onnx::ModelProto> parse_model(const OnnxFile& file) {
  onnx::ModelProto model;
  if (model.ParseFromString(file.skeleton())) return model;
  return input_error("{}: is no ONNX model: it does not parse", file.path());
}

Result<ConstantPtr> constant_from_onnx(const onnx::TensorProto& tensor) {
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL) {
    return input_error("tensor '{}': external data: expected for initializers alone",
                       tensor.name());
  }
  Constant constant;
  constant.desc.dtype = dtype_from_onnx(tensor.data_type());
  if (constant.desc.dtype == DType::kUndefined) {
    return input_error("tensor '{}' has ONNX type {}, which is not supported", tensor.name(),
                       tensor.data_type());
  }
  const std::vector<int64_t> axes(tensor.dims().begin(), tensor.dims().end());
  if (auto numel = checked_numel(axes); !numel.ok()) {
    return std::move(numel).status().with_prefix("tensor '" + tensor.name() + "'");
  }
  constant.desc.shape = Shape(axes);
  if (tensor.has_raw_data()) {
    const auto* raw = reinterpret_cast<const std::byte*>(tensor.raw_data().data());
    constant.bytes.assign(raw, raw + tensor.raw_data().size());
  } else {
    constant.bytes = typed_bytes(tensor, constant.desc.dtype);
  }
  if (constant.bytes.size() != constant.desc.bytes()) {
    return input_error("tensor '{}' {} needs {} bytes, found {}", tensor.name(),
                       constant.desc.text(), constant.desc.bytes(), constant.bytes.size());
  }
  return std::make_shared<const Constant>(std::move(constant));
}

Result<Attribute> attribute_from_onnx(const onnx::AttributeProto& attribute) {
  const auto list = [](const auto& field) {
    return std::vector<std::decay_t<decltype(*field.begin())>>(field.begin(), field.end());
  };
  switch (attribute.type()) {
    case A::INT:
      return Attribute(static_cast<int64_t>(attribute.i()));
    case A::FLOAT:
      return Attribute(attribute.f());
    case A::STRING:
      return Attribute(attribute.s());
    case A::INTS:
      return Attribute(std::vector<int64_t>(attribute.ints().begin(), attribute.ints().end()));
    case A::FLOATS:
      return Attribute(list(attribute.floats()));
    case A::STRINGS:
      return Attribute(list(attribute.strings()));
    case A::TENSOR: {
      OFSDP_ASSIGN_OR_RETURN(auto constant, constant_from_onnx(attribute.t()));
      return Attribute(constant);
    }
    default:
      return input_error("attribute '{}' of kind {} is not supported", attribute.name(),
                         A::AttributeType_Name(attribute.type()));
  }
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

std::string input_or_none(const onnx::NodeProto& node, int i) {
  return i < node.input_size() ? node.input(i) : "";
}

onnx::TensorProto tensor_proto(const std::string& name, const TensorDesc& desc, const void* bytes) {
  onnx::TensorProto tensor;
  tensor.set_name(name);
  tensor.set_data_type(onnx_from_dtype(desc.dtype));
  for (const int64_t axis : desc.shape.axes()) tensor.add_dims(axis);
  tensor.set_raw_data(bytes, desc.bytes());
  return tensor;
}

onnx::ValueInfoProto value_info(const std::string& name, const TensorDesc& desc) {
  onnx::ValueInfoProto info;
  info.set_name(name);
  set_tensor_type(*info.mutable_type(), onnx_from_dtype(desc.dtype), desc.shape.axes());
  return info;
}

void add_attribute(onnx::NodeProto& node, const std::string& name, const Attribute& value) {
  A& to = *node.add_attribute();
  to.set_name(name);
  const auto write = [&to](const auto& v) {
    using T = std::decay_t<decltype(v)>;
    if constexpr (std::is_same_v<T, int64_t>) {
      to.set_type(A::INT);
      to.set_i(v);
    } else if constexpr (std::is_same_v<T, float>) {
      to.set_type(A::FLOAT);
      to.set_f(v);
    } else if constexpr (std::is_same_v<T, std::string>) {
      to.set_type(A::STRING);
      to.set_s(v);
    } else if constexpr (std::is_same_v<T, ConstantPtr>) {
      to.set_type(A::TENSOR);
      *to.mutable_t() = tensor_proto("", v->desc, v->bytes.data());
    } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
      to.set_type(A::INTS);
      to.mutable_ints()->Add(v.begin(), v.end());
    } else if constexpr (std::is_same_v<T, std::vector<float>>) {
      to.set_type(A::FLOATS);
      to.mutable_floats()->Add(v.begin(), v.end());
    } else {
      to.set_type(A::STRINGS);
      to.mutable_strings()->Add(v.begin(), v.end());
    }
  };
  std::visit(write, value);
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
