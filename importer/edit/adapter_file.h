// The file of a model's adapters (--adapter, --lora-from): its place, names of tensors, alpha, and
// the weights that it has as a whole. adapted_source.cpp writes it.
//
// Besides adapters it has the weights that were trained whole, and running
// statistics, under the names that PEFT gives modules_to_save: base_model.model.NAME, in float32.
// A plain file next to a merged model, which has them, has only adapters (holds_whole_weights).
// Its metadata has lora_alpha. A file adapter_model.safetensors has PEFT's adapter_config.json
// next to it, which PeftModel.from_pretrained(FOLDER) reads.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "importer/file/tensor_file.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

class ModelEditor;

inline constexpr const char* kPeftFile = "adapter_model.safetensors";
inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kAlphaKey = "lora_alpha";  // of the metadata

// Returns the adapter file for --lora-from: in a folder, that of PEFT.
std::string adapter_file_in(const std::string& path);
// The same for --adapter, where a new name without an ending is a folder's.
std::string adapter_file_to_write(const std::string& path);
// Makes the folder for PEFT's file; nothing for other names. If it cannot, the writer of the file
// says why.
void make_adapter_folder(const std::string& file);
// Returns the alpha with which the file was trained, by its metadata or PEFT's configuration;
// nothing if neither says so. Errors: kInput for a configuration with several alphas.
Result<std::optional<double>> alpha_of_file(const std::string& path);
// Returns whether the file has weights besides adapters; false if it cannot be read.
bool has_whole_weights(const std::string& path);

// The ends of the names of an adapter's two weights.
inline constexpr const char *kAdapterA = ".lora_A.weight", *kAdapterB = ".lora_B.weight";
inline bool is_adapter_weight(std::string_view name) {
  return name.ends_with(kAdapterA) || name.ends_with(kAdapterB);
}

// Returns a tensor's name in an adapter file.
std::string adapter_file_name(const std::string& tensor);

// Returns the name of a weight that an adapter file has as a whole; "" for other tensors.
std::string whole_name(const FileTensor& tensor);

// Opens PEFT's safetensors or ONNX Runtime's file, judged by its first bytes.
Result<TensorFile> open_adapter_file(const std::string& path);

// Takes the weights that the adapter file `from` has in full, not as low-rank factors, and returns
// their names. Errors: kInput naming the file.
Result<std::vector<std::string>> take_whole_weights(ModelEditor& editor, const std::string& from);

}  // namespace ofsdp::importer
