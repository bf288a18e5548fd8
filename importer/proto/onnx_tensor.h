// Small tensors of an ONNX file (initializers kept in the skeleton, attributes) as Constants.
//
// Threads: any. Errors: kInput naming the tensor, when its type is not one of ours or its bytes do
// not match its shape.
#pragma once

#include <onnx/onnx_pb.h>

#include "kernels/core/attributes.h"

namespace ofsdp::importer {

DType dtype_from_onnx(int data_type);  // kUndefined for those we do not have

Result<ConstantPtr> constant_from_onnx(const onnx::TensorProto& tensor);

// kInput for subgraphs, sparse tensors and type attributes.
Result<Attribute> attribute_from_onnx(const onnx::AttributeProto& attribute);

}  // namespace ofsdp::importer
