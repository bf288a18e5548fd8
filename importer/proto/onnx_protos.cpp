#include "importer/proto/onnx_protos.h"

#include "importer/file/tensor_record.h"

namespace ofsdp::importer {
namespace {

struct AttributeWriter {
  onnx::AttributeProto& to;

  void operator()(int64_t value) {
    to.set_type(onnx::AttributeProto::INT);
    to.set_i(value);
  }
  void operator()(float value) {
    to.set_type(onnx::AttributeProto::FLOAT);
    to.set_f(value);
  }
  void operator()(const std::string& value) {
    to.set_type(onnx::AttributeProto::STRING);
    to.set_s(value);
  }
  void operator()(const std::vector<int64_t>& values) {
    to.set_type(onnx::AttributeProto::INTS);
    for (const int64_t value : values) to.add_ints(value);
  }
  void operator()(const std::vector<float>& values) {
    to.set_type(onnx::AttributeProto::FLOATS);
    for (const float value : values) to.add_floats(value);
  }
  void operator()(const std::vector<std::string>& values) {
    to.set_type(onnx::AttributeProto::STRINGS);
    for (const std::string& value : values) to.add_strings(value);
  }
  void operator()(const ConstantPtr& value) {
    to.set_type(onnx::AttributeProto::TENSOR);
    *to.mutable_t() = tensor_proto("", value->desc, value->bytes.data());
  }
};

}  // namespace

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
  auto& type = *info.mutable_type()->mutable_tensor_type();
  type.set_elem_type(onnx_from_dtype(desc.dtype));
  type.mutable_shape();
  for (const int64_t axis : desc.shape.axes()) type.mutable_shape()->add_dim()->set_dim_value(axis);
  return info;
}

void add_attribute(onnx::NodeProto& node, const std::string& name, const Attribute& value) {
  onnx::AttributeProto& attribute = *node.add_attribute();
  attribute.set_name(name);
  std::visit(AttributeWriter{attribute}, value);
}

}  // namespace ofsdp::importer
