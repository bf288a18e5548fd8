// quantized_values: what the values of a graph of integers stand for, and the nodes on floats that
// take their place; quantized_graph.h and qlinear.h write a graph with it.
//
// A `QuantizationPair` is a scale with its zero point, both names of constants of the file. Values
// are known by name: weights of the file, values that a pair quantized (`carried`), outputs of
// DynamicQuantizeLinear (`dynamic`).
//
// Owns nothing of the model, appends to its graph. Threads: one. Errors: kInput naming the value
// and what was expected of it.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

// How the integers of a value stand for floats.
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
  // The float that operand `i` with its scale at input `scale` stands for.
  Result<std::string> operand(const onnx::NodeProto& node, int i, int scale, int64_t axis);
  Result<std::string> operand(const std::string& name, QuantizationPair pair);
  Result<std::string> weight_value(const Initializer& weight, QuantizationPair pair);
  // Checks that a value was quantized as its reader takes it.
  Status check_same(const std::string& value, const QuantizationPair& made,
                    const QuantizationPair& read) const;
  // The type of a zero point, a constant of the file; `otherwise` where there is none.
  Result<int> type_of(const std::string& zero_point, int otherwise) const;
  Status check_bias(const onnx::NodeProto& node, int i) const;
  void set_types();

 protected:
  onnx::GraphProto& graph_;
  const OnnxFile& file_;
  std::map<std::string, const Initializer*> weights_;
  std::map<std::string, QuantizationPair> carried_;  // integers in the file, floats now
  std::set<std::string> dynamic_;                    // outputs of DynamicQuantizeLinear
  std::set<std::string> touched_;                    // values whose type becomes float

 private:
  std::string constant(const std::string& name, const std::vector<float>& values,
                       const Shape& shape);
  // Zero points as floats; "": all are 0.
  Result<std::string> zero_of(const QuantizationPair& pair);
  Status fake(const std::string& x, const QuantizationPair& pair, const std::string& output,
              bool weight = false);
  // Integers that are neither a weight nor made by a quantization: (q - zero_point) * scale.
  Result<std::string> plain_integers(const std::string& name, const QuantizationPair& pair);

  std::set<std::string> taken_;
  std::map<std::string, std::string> zeros_, made_weights_;
};

}  // namespace ofsdp::importer
