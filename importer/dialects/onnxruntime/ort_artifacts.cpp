#include "importer/dialects/onnxruntime/ort_artifacts.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "importer/file/file_mapping.h"
#include "importer/file/wire.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

constexpr const char* kTraining = "training_model.onnx";

// Returns the names in `folder` that end with kTraining.
std::vector<std::string> training_models(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(kTraining) && name[0] != '.') names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

bool is_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

Result<OrtCheckpoint> read_checkpoint(const OpenFile& file) {
  if (file.bytes == 0) return input_error("{}: is no checkpoint: the file is empty", file.path);
  OFSDP_ASSIGN_OR_RETURN(const FileMapping mapping, FileMapping::make(file));
  return prefixed(file.path + ": is no checkpoint of ONNX Runtime",
                  read_ort_checkpoint(mapping.bytes()));
}

}  // namespace

bool is_ort_folder(const std::string& folder) {
  std::error_code error;
  return std::filesystem::is_directory(folder, error) && !training_models(folder).empty();
}

Result<OrtPaths> ort_paths(const std::string& folder) {
  const auto names = training_models(folder);
  OFSDP_REJECT_IF(names.size() != 1, "{}: expected one file *{}, found {}{}", folder, kTraining,
                  names.size(), names.empty() ? "" : format_text(" ({})", joined(names, ", ")));
  const std::string prefix = names[0].substr(0, names[0].size() - std::strlen(kTraining));
  auto path = [&](const char* name) { return join_path(folder, prefix + name); };
  OrtPaths paths{path(kTraining), path("eval_model.onnx"), path("optimizer_model.onnx"),
                 path("checkpoint")};
  for (const std::string& needed : {paths.eval, paths.checkpoint}) {
    OFSDP_REJECT_IF(!is_file(needed), "{}: has {}{}, but no file {}", folder, prefix, kTraining,
                    filename_of(needed));
  }
  if (!is_file(paths.optimizer)) paths.optimizer.clear();
  return paths;
}

Initializer as_initializer(const OrtTensor& tensor, int file) {
  const DType dtype = dtype_of_number(tensor.onnx_type);
  Initializer made{tensor.name, dtype, tensor.shape, file, tensor.offset, tensor.bytes, {}, 0};
  made.encoding = Initializer::Encoding::kDense;
  made.stride = static_cast<int64_t>(dtype_size(dtype));
  return made;
}

Result<OrtCheckpoint> open_ort_checkpoint(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_reading(path));
  return read_checkpoint(file);
}

namespace {

constexpr const char* kBuffer = ".accumulation.buffer";
constexpr const char* kGradient = "_grad";

bool is_accumulator(const onnx::NodeProto& node) {
  return node.op_type() == "InPlaceAccumulatorV2" || node.op_type() == "InPlaceAccumulator";
}

// Returns "fc1.weight" for "fc1.weight_grad.accumulation.buffer"; empty for any other name.
std::string accumulated_parameter(const std::string& buffer) {
  const std::string suffix = std::string(kGradient) + kBuffer;
  return buffer.ends_with(suffix) ? buffer.substr(0, buffer.size() - suffix.size()) : "";
}

// Drops the elements of a repeated field for which `drop` is true.
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

// Makes the training model an ordinary one; ort_artifacts.h says how.
class TrainingModel {
 public:
  TrainingModel(OrtArtifacts& artifacts, OpenFile checkpoint)
      : artifacts_(artifacts), checkpoint_(std::move(checkpoint)) {}

  Status run() {
    OFSDP_ASSIGN_OR_RETURN(model_, parse_model(artifacts_.training));
    contents_ = artifacts_.training.take_contents();
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

  // ONNX Runtime adds gradients to its buffers; here they are outputs, which the run reduces.
  Status take_accumulators() {
    std::set<std::string> inputs, outputs;
    for (const auto& node : graph().node()) {
      if (!is_accumulator(node)) continue;
      OFSDP_REJECT_IF(node.input_size() < 2,
                      "{}: node '{}' ({}): expected a buffer and a gradient, found {} inputs",
                      path_, node.name(), node.op_type(), node.input_size());
      const std::string parameter = accumulated_parameter(node.input(0));
      OFSDP_REJECT_IF(
          !is_trained(parameter),
          "{}: node '{}' ({}) accumulates in '{}': expected the gradient of a parameter that {} "
          "has as trained",
          path_, node.name(), node.op_type(), node.input(0), artifacts_.paths.checkpoint);
      artifacts_.gradients.push_back({parameter, node.input(1)});
      inputs.insert(node.input(0));
      if (node.input_size() > 2) inputs.insert(node.input(2));
      outputs.insert(node.output().begin(), node.output().end());
    }
    OFSDP_REJECT_IF(inputs.empty(),
                    "{}: has no gradients: expected nodes InPlaceAccumulatorV2, found none", path_);
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

  // Backward starts from the constant 1; here each micro-batch has its own number.
  Status open_seed() {
    artifacts_.seed = graph().output(0).name() + kGradient;
    bool found = false;
    for (const auto& tensor : graph().initializer()) {
      if (tensor.name() != artifacts_.seed) continue;
      auto value = constant_from_onnx(tensor);
      found = value.ok() && (*value)->desc.dtype == DType::kFloat32 &&
              (*value)->desc.numel() == 1 &&
              *reinterpret_cast<const float*>((*value)->bytes.data()) == 1.0f;
    }
    OFSDP_REJECT_IF(
        !found,
        "{}: expected an initializer '{}' of value 1, from which backward starts, found none",
        path_, artifacts_.seed);
    erase_if(*graph().mutable_initializer(),
             [&](const auto& t) { return t.name() == artifacts_.seed; });
    // Small numbers of the graph are part of it, not weights.
    std::erase_if(contents_.initializers,
                  [](const Initializer& i) { return i.shape.numel() <= kSmallNumel; });
    *graph().add_input() = value_info(artifacts_.seed, {DType::kFloat32, Shape{}});
    return ok_status();
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
    const DType dtype = dtype_of_number(tensor.onnx_type);
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
    *graph().add_initializer() =
        tensor_proto(tensor.name, {dtype_of_number(tensor.onnx_type), tensor.shape}, bytes.data());
    return ok_status();
  }

  void declare_gradient(const OrtGradient& gradient) {
    auto& output = *graph().add_output();
    const onnx::ValueInfoProto* parameter = input(gradient.parameter);
    *output.mutable_type() = parameter->type();
    output.set_name(gradient.value);
  }

  OrtArtifacts& artifacts_;
  const std::string path_ = artifacts_.paths.training;
  OpenFile checkpoint_;
  OnnxContents contents_;
  onnx::ModelProto model_;
};

}  // namespace

Result<OrtArtifacts> OrtArtifacts::open(const std::string& folder) {
  OrtArtifacts artifacts;
  OFSDP_ASSIGN_OR_RETURN(artifacts.paths, ort_paths(folder));
  OFSDP_ASSIGN_OR_RETURN(artifacts.training, OnnxFile::open(artifacts.paths.training));
  OFSDP_ASSIGN_OR_RETURN(OpenFile file, open_for_reading(artifacts.paths.checkpoint));
  OFSDP_ASSIGN_OR_RETURN(artifacts.checkpoint, read_checkpoint(file));
  OFSDP_RETURN_IF_ERROR(TrainingModel(artifacts, std::move(file)).run());
  return artifacts;
}

}  // namespace ofsdp::importer
