// quantized_graph turns an integer graph between QuantizeLinear and DequantizeLinear into a float
// graph: each value becomes the float that dequantizing it would give.
//
//   QuantizeLinear                   ofsdp.FakeQuantize (kernels/ops/pointwise/quantize.cpp)
//   DequantizeLinear                 for such a value: nothing; for a weight in the file:
//                                    FakeQuantize over the master, for an int32 bias the master
//   QLinearConv and other QLinear*   the operator on floats, then FakeQuantize
//   DynamicQuantizeLinear            FakeQuantize with the micro-batch's scale and zero point
//   MatMulInteger, ConvInteger       MatMul, Conv; the Cast and the Mul after them go away, and a
//                                    bias that was made an integer before them is rounded alike
//   DynamicQuantizeLSTM              ofsdp.RoundedLSTM (kernels/ops/recurrent/recurrent.cpp)
//   Cast, Sub, Mul of a weight       as DequantizeLinear of it
//   Sqrt over a dequantized value    adds 1e-30: a variance that was rounded to 0
//
// QuantizeLinear and DynamicQuantizeLinear stay if no node reads their integers, and so does a
// DequantizeLinear over computed integers with several scales, or with computed scales. Both stay
// in float8, float4 or 2 bits (kernels/ops/pointwise/quantize.cpp).
//
// Operators that only move or choose elements may stand in between. Runs before opset conversion,
// so new nodes have the file's opset.
//
// Changes the model. Errors: kInput naming the node if scales are not constants or not above 0, if
// zero points have another type, or if another operator reads integers.
// https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html,
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

Status dequantize_graph(onnx::ModelProto& model, const OnnxFile& file);

// Maps an integer graph's values to floats, and appends the float nodes that replace them.
//
// A `QuantizationPair` is a scale with the zero point, both names of constants in the file. Values
// are known by name: weights in the file, values that a pair quantized (`carried`),
// DynamicQuantizeLinear's outputs (`dynamic`).
//
// Errors: kInput naming the value, expected and found.

// How a value's integers become floats.
struct QuantizationPair {
  std::string scale, zero_point;
  int onnx_type = onnx::TensorProto::UINT8;
  int64_t axis = 1, block_size = 0;
};

class QuantizedValues {
 public:
  // `model` and `file` must outlive this.
  QuantizedValues(onnx::ModelProto& model, const OnnxFile& file);

  onnx::NodeProto& add(const std::string& op, const std::vector<std::string>& inputs,
                       const std::string& output);
  std::string fresh(const std::string& name);
  void copy_attributes(const onnx::NodeProto& from, onnx::NodeProto& to,
                       std::initializer_list<const char*> without = {});
  std::string scalar(const std::string& name, float value);
  void fake_with(const std::string& x, const std::string& scale, const std::string& zero,
                 const QuantizationPair& pair, const std::string& output, bool weight);
  Status quantized_to(const std::string& x, const QuantizationPair& pair,
                      const std::string& output);
  Result<QuantizationPair> pair_at(const onnx::NodeProto& node, int scale, int64_t axis) const;
  // Returns the float for operand `i`, which has the scale at input `scale`.
  Result<std::string> operand(const onnx::NodeProto& node, int i, int scale, int64_t axis);
  Result<std::string> operand(const std::string& name, QuantizationPair pair);
  Result<std::string> weight_value(const Initializer& weight, QuantizationPair pair);
  // Checks that a value was quantized in the way that the reader expects.
  Status check_same(const std::string& value, const QuantizationPair& made,
                    const QuantizationPair& read) const;
  // Returns the type of a zero point, a constant in the file; `otherwise` if there is none.
  Result<int> type_of(const std::string& zero_point, int otherwise) const;
  Status check_bias(const onnx::NodeProto& node, int i) const;
  void set_types();

 protected:
  onnx::GraphProto& graph_;
  const OnnxFile& file_;
  std::map<std::string, const Initializer*> weights_;
  std::map<std::string, QuantizationPair> carried_;  // integers in the file, now floats
  std::set<std::string> dynamic_;                    // DynamicQuantizeLinear's outputs
  std::set<std::string> touched_;                    // values that become float

 private:
  std::string constant(const std::string& name, const std::vector<float>& values,
                       const Shape& shape);
  // Returns zero points as floats; "": all are 0.
  Result<std::string> zero_of(const QuantizationPair& pair);
  std::string zero_of_product(const Quantization& q);
  Status fake(const std::string& x, const QuantizationPair& pair, const std::string& output,
              bool weight = false);
  // Dequantizes integers that are neither a weight nor quantized here: (q - zero_point) * scale.
  Result<std::string> plain_integers(const std::string& name, const QuantizationPair& pair);

  std::set<std::string> taken_;
  std::map<std::string, std::string> zeros_, made_weights_;
};

}  // namespace ofsdp::importer
