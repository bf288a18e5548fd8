#include "importer/dialects/onnxruntime/ort_training_model.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <set>

#include "importer/file/wire.h"
#include "importer/proto/onnx_tensor.h"

namespace ofsdp::importer {
namespace {

constexpr const char* kBuffer = ".accumulation.buffer";
constexpr const char* kGradient = "_grad";

bool is_accumulator(const onnx::NodeProto& node) {
  return node.op_type() == "InPlaceAccumulatorV2" || node.op_type() == "InPlaceAccumulator";
}

// "fc1.weight" of "fc1.weight_grad.accumulation.buffer"; empty when it is not called that.
std::string accumulated_parameter(const std::string& buffer) {
  const std::string suffix = std::string(kGradient) + kBuffer;
  return buffer.ends_with(suffix) ? buffer.substr(0, buffer.size() - suffix.size()) : "";
}

// Drops the elements of a repeated field that `drop` says.
template <typename List, typename F>
void erase_if(List& list, const F& drop) {
  int kept = 0;
  for (int i = 0; i < list.size(); ++i) {
    if (drop(list.Get(i))) continue;
    if (kept != i) list.SwapElements(kept, i);
    ++kept;
  }
  list.DeleteSubrange(kept, list.size() - kept);
}

class TrainingModel {
 public:
  TrainingModel(OrtArtifacts& artifacts, OpenFile checkpoint)
      : artifacts_(artifacts),
        path_(artifacts.paths.training),
        checkpoint_(std::move(checkpoint)),
        contents_(artifacts.training.take_contents()) {}

  Status run() {
    if (!model_.ParseFromString(contents_.skeleton)) {
      return input_error("{}: is no ONNX model: it does not parse", path_);
    }
    OFSDP_RETURN_IF_ERROR(take_accumulators());
    OFSDP_RETURN_IF_ERROR(open_seed());
    OFSDP_RETURN_IF_ERROR(add_weights());
    for (const OrtGradient& gradient : artifacts_.gradients) declare_gradient(gradient);
    contents_.skeleton = model_.SerializeAsString();
    artifacts_.training.put_contents(std::move(contents_));
    return ok_status();
  }

 private:
  onnx::GraphProto& graph() { return *model_.mutable_graph(); }

  const onnx::ValueInfoProto* input(const std::string& name) {
    for (const auto& value : graph().input()) {
      if (value.name() == name) return &value;
    }
    return nullptr;
  }

  // Gradients go into buffers of ONNX Runtime's; here they are what the run reduces.
  Status take_accumulators() {
    std::set<std::string> inputs, outputs;
    for (const auto& node : graph().node()) {
      if (!is_accumulator(node)) continue;
      if (node.input_size() < 2) {
        return input_error("{}: node '{}' ({}): expected a buffer and a gradient, found {} inputs",
                           path_, node.name(), node.op_type(), node.input_size());
      }
      const std::string parameter = accumulated_parameter(node.input(0));
      if (!is_trained(parameter)) {
        return input_error(
            "{}: node '{}' ({}) accumulates in '{}': expected the gradient of a parameter that {} "
            "has as trained",
            path_, node.name(), node.op_type(), node.input(0), artifacts_.paths.checkpoint);
      }
      artifacts_.gradients.push_back({parameter, node.input(1)});
      inputs.insert(node.input(0));
      if (node.input_size() > 2) inputs.insert(node.input(2));
      outputs.insert(node.output().begin(), node.output().end());
    }
    if (inputs.empty()) {
      return input_error("{}: has no gradients: expected nodes InPlaceAccumulatorV2, found none",
                         path_);
    }
    erase_if(*graph().mutable_node(), is_accumulator);
    erase_if(*graph().mutable_input(), [&](const auto& v) { return inputs.contains(v.name()); });
    erase_if(*graph().mutable_output(), [&](const auto& v) { return outputs.contains(v.name()); });
    if (graph().output_size() > 0) return ok_status();
    return input_error("{}: expected the loss as its first output, found none", path_);
  }

  bool is_trained(const std::string& parameter) const {
    const auto& trained = artifacts_.checkpoint.trained;
    return !parameter.empty() &&
           std::ranges::find(trained, parameter, &OrtTensor::name) != trained.end();
  }

  // Backward starts from the constant 1; each micro-batch has its own number instead.
  Status open_seed() {
    artifacts_.loss = graph().output(0).name();
    artifacts_.seed = artifacts_.loss + kGradient;
    bool found = false;
    for (const auto& tensor : graph().initializer()) {
      if (tensor.name() != artifacts_.seed) continue;
      auto value = constant_from_onnx(tensor);
      found = value.ok() && (*value)->desc.dtype == DType::kFloat32 &&
              (*value)->desc.numel() == 1 &&
              *reinterpret_cast<const float*>((*value)->bytes.data()) == 1.0f;
    }
    if (!found) {
      return input_error(
          "{}: expected an initializer '{}' of value 1, from which backward starts, found none",
          path_, artifacts_.seed);
    }
    erase_if(*graph().mutable_initializer(),
             [&](const auto& t) { return t.name() == artifacts_.seed; });
    // Small numbers of the graph are part of it, not weights.
    std::erase_if(contents_.initializers,
                  [](const Initializer& i) { return i.shape.numel() <= kSmallNumel; });
    add_float(*graph().add_input(), artifacts_.seed);
    return ok_status();
  }

  static void add_float(onnx::ValueInfoProto& value, const std::string& name) {
    value.set_name(name);
    auto* type = value.mutable_type()->mutable_tensor_type();
    type->set_elem_type(onnx::TensorProto::FLOAT);
    type->mutable_shape();
  }

  Status add_weights() {
    contents_.data_files.push_back({"checkpoint", std::move(checkpoint_)});
    for (const auto* list : {&artifacts_.checkpoint.trained, &artifacts_.checkpoint.frozen}) {
      for (const OrtTensor& tensor : *list) OFSDP_RETURN_IF_ERROR(add_weight(tensor));
    }
    return ok_status();
  }

  Status add_weight(const OrtTensor& tensor) {
    const onnx::ValueInfoProto* declared = input(tensor.name);
    if (declared == nullptr) {
      // ONNX Runtime's optimizations may leave no use of a frozen one.
      if (!is_trained(tensor.name)) return ok_status();
      return input_error("{}: has '{}', which is no input of {}", artifacts_.paths.checkpoint,
                         printable(tensor.name), path_);
    }
    OFSDP_RETURN_IF_ERROR(check_declared(tensor, *declared));
    const DType dtype = dtype_from_onnx(tensor.onnx_type);
    if (!is_floating(dtype)) return add_constant(tensor);
    const auto file = static_cast<int>(contents_.data_files.size());
    contents_.initializers.push_back(as_initializer(tensor, file));
    return ok_status();
  }

  Status check_declared(const OrtTensor& tensor, const onnx::ValueInfoProto& declared) const {
    const auto& type = declared.type().tensor_type();
    std::vector<int64_t> axes;
    for (const auto& dim : type.shape().dim()) axes.push_back(dim.dim_value());
    if (type.elem_type() == tensor.onnx_type && Shape(axes) == tensor.shape) return ok_status();
    return input_error("{}: '{}': expected {} of ONNX type {}, as {} says, found {} of type {}",
                       artifacts_.paths.checkpoint, printable(tensor.name), Shape(axes).text(),
                       type.elem_type(), path_, tensor.shape.text(), tensor.onnx_type);
  }

  Status add_constant(const OrtTensor& tensor) {
    std::string bytes(static_cast<size_t>(tensor.bytes), '\0');
    OFSDP_RETURN_IF_ERROR(read_exactly(contents_.data_files.back().file, tensor.offset,
                                       std::as_writable_bytes(std::span(bytes))));
    auto& made = *graph().add_initializer();
    made.set_name(tensor.name);
    made.set_data_type(tensor.onnx_type);
    for (const int64_t axis : tensor.shape.axes()) made.add_dims(axis);
    made.set_raw_data(std::move(bytes));
    return ok_status();
  }

  void declare_gradient(const OrtGradient& gradient) {
    auto& output = *graph().add_output();
    const onnx::ValueInfoProto* parameter = input(gradient.parameter);
    *output.mutable_type() = parameter->type();
    output.set_name(gradient.value);
  }

  OrtArtifacts& artifacts_;
  const std::string path_;
  OpenFile checkpoint_;
  OnnxContents contents_;
  onnx::ModelProto model_;
};

}  // namespace

Status make_ordinary(OrtArtifacts& artifacts, OpenFile checkpoint) {
  return TrainingModel(artifacts, std::move(checkpoint)).run();
}

}  // namespace ofsdp::importer
