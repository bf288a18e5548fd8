// Conversions between ONNX's protos and our own values, and small protos for code that writes
// models: tensors, value infos, attributes. Errors: kInput naming the tensor if the type is unknown
// or the bytes do not match the shape.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>

#include "importer/file/onnx_file.h"
#include "importer/file/tensor_record.h"
#include "kernels/core/kernel.h"

namespace ofsdp::importer {

// --- from ONNX ---

// Parses the file's skeleton.
Result<onnx::ModelProto> parse_model(const OnnxFile& file);
Result<ConstantPtr> constant_from_onnx(const onnx::TensorProto& tensor);
// kInput for subgraphs, sparse tensors and type attributes.
Result<Attribute> attribute_from_onnx(const onnx::AttributeProto& attribute);
Result<Attributes> attributes_from_onnx(const onnx::NodeProto& node);

// Returns the domain in the form for files: "" for "ai.onnx".
std::string short_domain(const std::string& domain);
// Returns "Name", or "domain.Name" outside ai.onnx.
std::string operator_name(const onnx::NodeProto& node);
// Returns a (short) domain's version among a model's or function's imports; 0: not imported.
template <typename Imports>
int version_of(const Imports& imports, const std::string& domain) {
  for (const auto& import : imports) {
    if (short_domain(import.domain()) == domain) return static_cast<int>(import.version());
  }
  return 0;
}
// Returns null if the node has no such attribute.
const onnx::AttributeProto* find_attribute(const onnx::NodeProto& node, const std::string& name);
int64_t int_attribute(const onnx::NodeProto& node, const std::string& name, int64_t otherwise);
float float_attribute(const onnx::NodeProto& node, const std::string& name, float otherwise);
std::string input_or_none(const onnx::NodeProto& node, int i);  // "" when absent

// --- to ONNX ---

onnx::TensorProto tensor_proto(const std::string& name, const TensorDesc& desc, const void* bytes);
// Sets the type to a tensor with that element type (TensorProto.DataType) and known axes.
template <typename Axes>
void set_tensor_type(onnx::TypeProto& type, int element_type, const Axes& axes) {
  type.mutable_tensor_type()->set_elem_type(element_type);
  auto& shape = *type.mutable_tensor_type()->mutable_shape();
  for (const int64_t axis : axes) shape.add_dim()->set_dim_value(axis);
}
onnx::ValueInfoProto value_info(const std::string& name, const TensorDesc& desc);
void add_attribute(onnx::NodeProto& node, const std::string& name, const Attribute& value);
// Returns a nameless Constant node that makes the value `name`.
onnx::NodeProto constant_node(const std::string& name, onnx::TensorProto tensor);

}  // namespace ofsdp::importer
