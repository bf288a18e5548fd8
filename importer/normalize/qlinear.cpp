#include "importer/normalize/qlinear.h"

#include "importer/proto/onnx_protos.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

// The output's pair is at inputs `scale` and `scale` + 1.
Status finish(QuantizedValues& values, const onnx::NodeProto& node, const std::string& value,
              int scale) {
  OFSDP_ASSIGN_OR_RETURN(const QuantizationPair pair, values.pair_at(node, scale, 1));
  return values.quantized_to(value, pair, node.output(0));
}

Status conv(QuantizedValues& values, const onnx::NodeProto& node) {
  OFSDP_ASSIGN_OR_RETURN(const std::string x, values.operand(node, 0, 1, 1));
  OFSDP_ASSIGN_OR_RETURN(const std::string w, values.operand(node, 3, 4, 0));
  OFSDP_RETURN_IF_ERROR(values.check_bias(node, 8));
  const std::string y = values.fresh(node.output(0) + "//float");
  values.copy_attributes(node, values.add("Conv", {x, w, input_or_none(node, 8)}, y));
  return finish(values, node, y, 6);
}

Status binary(QuantizedValues& values, const onnx::NodeProto& node, const char* op, int64_t axis) {
  OFSDP_ASSIGN_OR_RETURN(const std::string a, values.operand(node, 0, 1, axis));
  OFSDP_ASSIGN_OR_RETURN(const std::string b, values.operand(node, 3, 4, axis));
  const std::string y = values.fresh(node.output(0) + "//float");
  values.add(op, {a, b}, y);
  return finish(values, node, y, 6);
}

Status gemm(QuantizedValues& values, const onnx::NodeProto& node) {
  OFSDP_ASSIGN_OR_RETURN(const std::string a, values.operand(node, 0, 1, 1));
  OFSDP_ASSIGN_OR_RETURN(const std::string b, values.operand(node, 3, 4, 1));
  OFSDP_RETURN_IF_ERROR(values.check_bias(node, 6));
  const bool floats = input_or_none(node, 7).empty();
  const std::string y = floats ? node.output(0) : values.fresh(node.output(0) + "//float");
  values.copy_attributes(node, values.add("Gemm", {a, b, input_or_none(node, 6)}, y));
  return floats ? ok_status() : finish(values, node, y, 7);
}

Status concat(QuantizedValues& values, const onnx::NodeProto& node) {
  std::vector<std::string> parts;
  for (int i = 2; i + 2 < node.input_size(); i += 3) {
    OFSDP_ASSIGN_OR_RETURN(const std::string x, values.operand(node, i, i + 1, 1));
    parts.push_back(x);
  }
  const std::string y = values.fresh(node.output(0) + "//float");
  values.copy_attributes(node, values.add("Concat", parts, y));
  return finish(values, node, y, 0);
}

Status where(QuantizedValues& values, const onnx::NodeProto& node) {
  OFSDP_ASSIGN_OR_RETURN(const std::string a, values.operand(node, 1, 2, 1));
  OFSDP_ASSIGN_OR_RETURN(const std::string b, values.operand(node, 4, 5, 1));
  const std::string y = values.fresh(node.output(0) + "//float");
  values.add("Where", {node.input(0), a, b}, y);
  return finish(values, node, y, 7);
}

Status unary(QuantizedValues& values, const onnx::NodeProto& node, const char* op,
             std::initializer_list<const char*> without = {}) {
  OFSDP_REJECT_IF(int_attribute(node, "channels_last", 0) != 0,
                  "attribute 'channels_last': expected 0, found 1");
  OFSDP_ASSIGN_OR_RETURN(const std::string x, values.operand(node, 0, 1, 1));
  const std::string y = values.fresh(node.output(0) + "//float");
  values.copy_attributes(node, values.add(op, {x}, y), without);
  return finish(values, node, y, 3);
}

}  // namespace

Status lower_qlinear(QuantizedValues& values, const onnx::NodeProto& node) {
  const std::string& op = node.op_type();
  if (op == "QLinearConv") return conv(values, node);
  if (op == "QLinearMatMul") return binary(values, node, "MatMul", -1);
  if (op == "QLinearAdd") return binary(values, node, "Add", -1);
  if (op == "QLinearMul") return binary(values, node, "Mul", -1);
  if (op == "QGemm") return gemm(values, node);
  if (op == "QLinearConcat") return concat(values, node);
  if (op == "QLinearWhere") return where(values, node);
  if (op == "QLinearGlobalAveragePool")
    return unary(values, node, "GlobalAveragePool", {"channels_last"});
  if (op == "QLinearAveragePool") return unary(values, node, "AveragePool", {"channels_last"});
  if (op == "QLinearSigmoid") return unary(values, node, "Sigmoid");
  if (op == "QLinearLeakyRelu") return unary(values, node, "LeakyRelu");
  if (op == "QLinearSoftmax") return unary(values, node, "Softmax", {"opset"});
  if (op == "QLinearReduceMean") return unary(values, node, "ReduceMean");
  return input_error("expected a QLinear operator with a form on floats, found this one");
}

}  // namespace ofsdp::importer
