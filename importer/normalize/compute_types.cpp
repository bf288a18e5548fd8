#include "importer/normalize/compute_types.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "importer/proto/onnx_protos.h"

namespace ofsdp::importer {
namespace {

// Attributes whose value is a type.
constexpr std::array kTypeAttributes = {"to",         "dtype",           "output_dtype",
                                        "stash_type", "output_datatype", "softmax_precision"};

class Float32Model {
 public:
  explicit Float32Model(std::set<int> types) : types_(std::move(types)) {}

  Status convert(onnx::GraphProto& graph) {
    for (auto* infos :
         {graph.mutable_input(), graph.mutable_output(), graph.mutable_value_info()}) {
      for (auto& info : *infos) convert(*info.mutable_type());
    }
    for (auto& tensor : *graph.mutable_initializer()) OFSDP_RETURN_IF_ERROR(convert(tensor));
    for (auto& node : *graph.mutable_node()) {
      for (auto& attribute : *node.mutable_attribute()) OFSDP_RETURN_IF_ERROR(convert(attribute));
    }
    return {};
  }

 private:
  bool concerns(int64_t type) const { return types_.contains(static_cast<int>(type)); }

  void convert(onnx::TypeProto& type) const {
    if (type.has_sequence_type()) convert(*type.mutable_sequence_type()->mutable_elem_type());
    if (type.has_optional_type()) convert(*type.mutable_optional_type()->mutable_elem_type());
    if (!type.has_tensor_type() || !concerns(type.tensor_type().elem_type())) return;
    type.mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
  }

  Status convert(onnx::TensorProto& tensor) const {
    if (!concerns(tensor.data_type())) return {};
    OFSDP_ASSIGN_OR_RETURN(const ConstantPtr constant, constant_from_onnx(tensor));
    const auto values = to_doubles(constant->desc, constant->bytes.data());
    const std::vector<float> floats(values.begin(), values.end());
    onnx::TensorProto converted;
    converted.set_name(tensor.name());
    converted.set_data_type(onnx::TensorProto::FLOAT);
    *converted.mutable_dims() = tensor.dims();
    converted.set_raw_data(floats.data(), floats.size() * sizeof(float));
    tensor = std::move(converted);
    return {};
  }

  Status convert(onnx::AttributeProto& attribute) {
    if (attribute.has_t()) OFSDP_RETURN_IF_ERROR(convert(*attribute.mutable_t()));
    if (attribute.has_g()) OFSDP_RETURN_IF_ERROR(convert(*attribute.mutable_g()));
    if (attribute.has_tp()) convert(*attribute.mutable_tp());
    if (attribute.type() != onnx::AttributeProto::INT || !concerns(attribute.i())) return {};
    if (std::ranges::find(kTypeAttributes, attribute.name()) == kTypeAttributes.end()) return {};
    attribute.set_i(onnx::TensorProto::FLOAT);
    return {};
  }

  std::set<int> types_;  // of ONNX
};

}  // namespace

Status compute_in_float32(onnx::ModelProto& model, const std::vector<Initializer>& weights) {
  std::set<int> types;
  for (const Initializer& weight : weights) {
    if (weight.dtype == DType::kFloat64) types.insert(onnx::TensorProto::DOUBLE);
    if (is_16_bit_float(weight.dtype)) {
      types.insert({onnx::TensorProto::FLOAT16, onnx::TensorProto::BFLOAT16});
    }
  }
  return types.empty() ? ok_status() : Float32Model(types).convert(*model.mutable_graph());
}

}  // namespace ofsdp::importer
