// Small protos from our own values, for those who write models: tensors, value infos, attributes.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>

#include "kernels/core/attributes.h"

namespace ofsdp::importer {

onnx::TensorProto tensor_proto(const std::string& name, const TensorDesc& desc, const void* bytes);
onnx::ValueInfoProto value_info(const std::string& name, const TensorDesc& desc);
void add_attribute(onnx::NodeProto& node, const std::string& name, const Attribute& value);

}  // namespace ofsdp::importer
