// Finds the integer initializers of a graph that are weights: those that only nodes read which
// dequantize them, all in the same way.
//
//   DequantizeLinear                      of ONNX or com.microsoft; int32 is a bias
//   QLinearConv, QLinearMatMul, QGemm,    weights, and biases in int32 whose scale is the product
//   QLinearAdd, QLinearMul                of two
//   MatMulInteger, ConvInteger            weights, with the scale that the Mul after them applies
//   MatMulIntegerToFloat, DynamicQuantizeMatMul
//
// And the operands of operators that compute with integers as they are: MatMulNBits,
// GatherBlockQuantized.
//
// Works on the bytes of a GraphProto, before any of it is parsed. Threads: any. Errors: kInput of a
// graph that is cut off.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "importer/file/initializer.h"
#include "importer/file/wire.h"

namespace ofsdp::importer {

struct QuantizedUses {
  // By initializer: names, axis and blocks are set.
  std::map<std::string, Quantization> weights;
  // Initializers of any type that operators on weights of few bits alone read.
  std::set<std::string> own_type;
  std::vector<WireField> constants;  // NodeProtos of Constant nodes
};

// `integers`: names and TensorProto.DataType of the graph's initializers of integers.
Result<QuantizedUses> quantized_uses(const WireField& graph,
                                     const std::map<std::string, int>& integers);

}  // namespace ofsdp::importer
