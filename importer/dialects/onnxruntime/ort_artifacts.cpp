#include "importer/dialects/onnxruntime/ort_artifacts.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "importer/dialects/onnxruntime/ort_training_model.h"
#include "importer/file/file_mapping.h"
#include "importer/proto/onnx_tensor.h"

namespace ofsdp::importer {
namespace {

constexpr const char* kTraining = "training_model.onnx";

// The names in `folder` that end with kTraining.
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
  auto read = read_ort_checkpoint(mapping.bytes());
  if (!read.ok()) {
    return std::move(read).status().with_prefix(file.path + ": is no checkpoint of ONNX Runtime");
  }
  return read;
}

}  // namespace

bool is_ort_folder(const std::string& folder) {
  std::error_code error;
  return std::filesystem::is_directory(folder, error) && !training_models(folder).empty();
}

Result<OrtPaths> ort_paths(const std::string& folder) {
  const auto names = training_models(folder);
  if (names.size() != 1) {
    return input_error("{}: expected one file *{}, found {}{}", folder, kTraining, names.size(),
                       names.empty() ? "" : format_text(" ({})", joined(names, ", ")));
  }
  const std::string prefix = names[0].substr(0, names[0].size() - std::strlen(kTraining));
  auto path = [&](const char* name) { return join_path(folder, prefix + name); };
  OrtPaths paths{path(kTraining), path("eval_model.onnx"), path("optimizer_model.onnx"),
                 path("checkpoint")};
  for (const std::string& needed : {paths.eval, paths.checkpoint}) {
    if (!is_file(needed)) {
      return input_error("{}: has {}{}, but no file {}", folder, prefix, kTraining,
                         filename_of(needed));
    }
  }
  if (!is_file(paths.optimizer)) paths.optimizer.clear();
  return paths;
}

Initializer as_initializer(const OrtTensor& tensor, int file) {
  const DType dtype = dtype_from_onnx(tensor.onnx_type);
  Initializer made{tensor.name, dtype, tensor.shape, file, tensor.offset, tensor.bytes, {}, 0};
  made.encoding = Initializer::Encoding::kDense;
  made.stride = static_cast<int64_t>(dtype_size(dtype));
  return made;
}

Result<OrtCheckpoint> open_ort_checkpoint(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_reading(path));
  return read_checkpoint(file);
}

Result<OrtArtifacts> OrtArtifacts::open(const std::string& folder) {
  OrtArtifacts artifacts;
  OFSDP_ASSIGN_OR_RETURN(artifacts.paths, ort_paths(folder));
  OFSDP_ASSIGN_OR_RETURN(artifacts.training, OnnxFile::open(artifacts.paths.training));
  OFSDP_ASSIGN_OR_RETURN(OpenFile file, open_for_reading(artifacts.paths.checkpoint));
  OFSDP_ASSIGN_OR_RETURN(artifacts.checkpoint, read_checkpoint(file));
  OFSDP_RETURN_IF_ERROR(make_ordinary(artifacts, std::move(file)));
  return artifacts;
}

Status take_backward(const OrtArtifacts& artifacts, Graph& graph) {
  std::map<std::string, ValueId> ids;
  for (size_t id = 1; id < graph.values.size(); ++id) {
    ids[graph.values[id].name] = static_cast<ValueId>(id);
  }
  const auto seed = ids.find(artifacts.seed);
  OFSDP_CHECK(seed != ids.end(), "{}", artifacts.seed);
  graph.loss_weight = seed->second;
  graph.value(seed->second).kind = ValueKind::kLossWeight;
  std::erase(graph.inputs, seed->second);
  std::set<ValueId> gradients;
  for (const OrtGradient& gradient : artifacts.gradients) {
    const auto parameter =
        std::ranges::find(graph.parameters, gradient.parameter, &Parameter::name);
    OFSDP_CHECK(parameter != graph.parameters.end(), "{}", gradient.parameter);
    parameter->gradient = ids.at(gradient.value);
    gradients.insert(parameter->gradient);
  }
  std::erase_if(graph.outputs, [&](ValueId id) { return gradients.contains(id); });
  return ok_status();
}

}  // namespace ofsdp::importer
