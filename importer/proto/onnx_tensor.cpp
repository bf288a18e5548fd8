#include "importer/proto/onnx_tensor.h"

namespace ofsdp::importer {

DType dtype_from_onnx(int data_type) {
  using T = onnx::TensorProto;
  switch (data_type) {
    case T::FLOAT:
      return DType::kFloat32;
    case T::DOUBLE:
      return DType::kFloat64;
    case T::FLOAT16:
      return DType::kFloat16;
    case T::BFLOAT16:
      return DType::kBFloat16;
    case T::INT8:
      return DType::kInt8;
    case T::INT16:
      return DType::kInt16;
    case T::INT32:
      return DType::kInt32;
    case T::INT64:
      return DType::kInt64;
    case T::UINT8:
      return DType::kUInt8;
    case T::UINT16:
      return DType::kUInt16;
    case T::UINT32:
      return DType::kUInt32;
    case T::UINT64:
      return DType::kUInt64;
    case T::BOOL:
      return DType::kBool;
    default:
      return DType::kUndefined;
  }
}

namespace {

template <typename To, typename Field>
void append(std::vector<std::byte>& bytes, const Field& field) {
  for (const auto value : field) {
    const To converted = static_cast<To>(value);
    const auto* raw = reinterpret_cast<const std::byte*>(&converted);
    bytes.insert(bytes.end(), raw, raw + sizeof(To));
  }
}

// The typed fields, which hold small types in wide integers (onnx.proto, TensorProto).
std::vector<std::byte> typed_bytes(const onnx::TensorProto& tensor, DType dtype) {
  std::vector<std::byte> bytes;
  switch (dtype) {
    case DType::kFloat32:
      append<float>(bytes, tensor.float_data());
      break;
    case DType::kFloat64:
      append<double>(bytes, tensor.double_data());
      break;
    case DType::kInt64:
      append<int64_t>(bytes, tensor.int64_data());
      break;
    case DType::kUInt32:
      append<uint32_t>(bytes, tensor.uint64_data());
      break;
    case DType::kUInt64:
      append<uint64_t>(bytes, tensor.uint64_data());
      break;
    case DType::kInt32:
      append<int32_t>(bytes, tensor.int32_data());
      break;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kUInt16:
      append<uint16_t>(bytes, tensor.int32_data());
      break;
    case DType::kInt16:
      append<int16_t>(bytes, tensor.int32_data());
      break;
    case DType::kInt8:
      append<int8_t>(bytes, tensor.int32_data());
      break;
    case DType::kUInt8:
    case DType::kBool:
      append<uint8_t>(bytes, tensor.int32_data());
      break;
    case DType::kUndefined:
      break;
  }
  return bytes;
}

}  // namespace

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
  using A = onnx::AttributeProto;
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
      return Attribute(std::vector<float>(attribute.floats().begin(), attribute.floats().end()));
    case A::STRINGS:
      return Attribute(
          std::vector<std::string>(attribute.strings().begin(), attribute.strings().end()));
    case A::TENSOR: {
      OFSDP_ASSIGN_OR_RETURN(auto constant, constant_from_onnx(attribute.t()));
      return Attribute(constant);
    }
    default:
      return input_error("attribute '{}' of kind {} is not supported", attribute.name(),
                         A::AttributeType_Name(attribute.type()));
  }
}

}  // namespace ofsdp::importer
