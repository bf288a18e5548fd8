// quantized_graph: a graph of integers between QuantizeLinear and DequantizeLinear becomes one of
// floats: each value stands for what dequantizing it would give.
//
//   QuantizeLinear                   ofsdp.FakeQuantize (kernels/ops/pointwise/fake_quantize.cpp)
//   DequantizeLinear                 of such a value: nothing; of a weight in the file:
//                                    FakeQuantize of its master, of an int32 bias the master
//   QLinearConv and other QLinear*   the operator on floats, then FakeQuantize
//   DynamicQuantizeLinear            FakeQuantize with scale and zero point of the micro-batch
//   MatMulInteger, ConvInteger       MatMul, Conv; the Cast and the Mul after them go away
//   Sqrt of what was dequantized     of 1e-30 more: a variance that was rounded to 0
//
// QuantizeLinear and DynamicQuantizeLinear stay if no node reads their integers, and so does a
// DequantizeLinear of computed integers with several scales, or with scales that are computed.
// Both stay if they are of float8, float4 or 2 bits (kernels/ops/pointwise/quantize_linear.cpp).
//
// Operators that only move or choose elements may stand between. Runs before the conversion of
// opsets, so new nodes are of the file's opset.
//
// Changes the model. Threads: one. Errors: kInput naming the node: scales that are no constants or
// not above 0, zero points of another type, integers that another operator reads.
// https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html,
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#pragma once

#include <onnx/onnx_pb.h>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

Status dequantize_graph(onnx::ModelProto& model, const OnnxFile& file);

}  // namespace ofsdp::importer
