#include "importer/edit/adapter_file.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "importer/edit/model_editor.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

namespace {

// Reads the alpha of PEFT's configuration; with use_rslora the scale is alpha / sqrt(r).
Result<std::optional<double>> alpha_of_configuration(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return std::optional<double>();
  const auto json = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  OFSDP_REJECT_IF(!json.is_object(), "{}: expected a JSON object", path);
  for (const char* key : {"alpha_pattern", "rank_pattern"}) {
    const auto found = json.find(key);
    OFSDP_REJECT_IF(found != json.end() && !found->empty() && !found->is_null(),
                    "{}: {}: expected one rank and one alpha for all weights", path, key);
  }
  const auto alpha = json.find("lora_alpha");
  if (alpha == json.end() || !alpha->is_number()) return std::optional<double>();
  const auto root = json.find("use_rslora"), rank = json.find("r");
  const bool rooted =
      root != json.end() && *root == true && rank != json.end() && rank->is_number();
  return std::optional(alpha->get<double>() * (rooted ? std::sqrt(rank->get<double>()) : 1));
}

}  // namespace

std::string adapter_file_name(const std::string& tensor) { return "base_model.model." + tensor; }

std::string whole_name(const FileTensor& tensor) {
  const std::string prefix = adapter_file_name("");
  const bool adapter = is_adapter_weight(tensor.name);
  return !adapter && tensor.name.starts_with(prefix) ? tensor.name.substr(prefix.size()) : "";
}

Result<TensorFile> open_adapter_file(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const bool ort, is_ort_adapter(path));
  return ort ? open_ort_adapter(path) : open_safetensors(path);
}

std::string adapter_file_in(const std::string& path) {
  std::error_code error;
  const bool folder = path.ends_with('/') || std::filesystem::is_directory(path, error);
  return folder ? join_path(path, kPeftFile) : path;
}

std::string adapter_file_to_write(const std::string& path) {
  std::error_code error;
  const bool plain = path.empty() || std::filesystem::path(path).has_extension();
  const bool folder = !plain && !std::filesystem::exists(path, error);
  return folder ? join_path(path, kPeftFile) : adapter_file_in(path);
}

void make_adapter_folder(const std::string& file) {
  const std::filesystem::path adapter(file);
  std::error_code ignored;
  if (adapter.filename() == kPeftFile)
    std::filesystem::create_directories(adapter.parent_path(), ignored);
}

bool has_whole_weights(const std::string& path) {
  const auto file = open_adapter_file(path);
  return file.ok() && std::ranges::any_of(file->tensors(), [](const FileTensor& tensor) {
           return !whole_name(tensor).empty();
         });
}

Result<std::vector<std::string>> take_whole_weights(ModelEditor& editor, const std::string& from) {
  OFSDP_ASSIGN_OR_RETURN(TensorFile opened, open_adapter_file(from));
  const auto file = std::make_shared<const TensorFile>(std::move(opened));
  std::vector<std::string> names;
  for (const FileTensor& tensor : file->tensors()) {
    const Initializer* const weight = editor.weight(whole_name(tensor));
    if (weight == nullptr) continue;
    OFSDP_REJECT_IF(!(weight->shape == tensor.shape),
                    "--lora-from {}: '{}': expected shape {}, found {}", from,
                    printable(tensor.name), weight->shape.text(), tensor.shape.text());
    OFSDP_REJECT_IF(!is_floating(tensor.dtype),
                    "--lora-from {}: '{}': expected floating-point numbers, found {}", from,
                    printable(tensor.name), tensor.type);
    OFSDP_RETURN_IF_ERROR(editor.set_values(whole_name(tensor), tensor_values(file, tensor))
                              .with_prefix("--lora-from " + from));
    names.push_back(whole_name(tensor));
  }
  return names;
}

Result<std::optional<double>> alpha_of_file(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const TensorFile file, open_adapter_file(path));
  const auto said = file.metadata().find(kAlphaKey);
  if (said == file.metadata().end()) {
    if (base_filename(path) != kPeftFile) return std::optional<double>();
    return alpha_of_configuration(join_path(parent_folder(path), kPeftConfig));
  }
  char* end = nullptr;
  const double alpha = std::strtod(said->second.c_str(), &end);
  OFSDP_REJECT_IF(*end != 0 || !(alpha > 0) || std::isinf(alpha),
                  "{}: metadata {}: expected a number above 0, found '{}'", path, kAlphaKey,
                  printable(said->second));
  return std::optional(alpha);
}

}  // namespace ofsdp::importer
