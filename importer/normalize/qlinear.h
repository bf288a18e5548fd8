// qlinear: a QLinear operator (or QGemm) becomes the operator on floats, and a FakeQuantize of its
// output's pair after it.
//
// Appends nodes to the graph of `values`. Threads: one. Errors: kInput: an operator without a form
// on floats, or an operand that `values` refuses.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#pragma once

#include "importer/normalize/quantized_values.h"

namespace ofsdp::importer {

Status lower_qlinear(QuantizedValues& values, const onnx::NodeProto& node);

}  // namespace ofsdp::importer
