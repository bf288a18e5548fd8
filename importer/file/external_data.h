// External data of ONNX: tensors whose bytes are in files next to the model, named by TensorProto's
// external_data entries (location, offset, length).
//
// A location is a path relative to the model's folder and stays in it: absolute ones, `..`, and
// symbolic links that lead out of the folder are refused, so a model cannot read other files.
//
// Ownership: OpenFile owns its descriptor. Threads: any.
// Errors: kInput, naming tensor data's file, expected and found; the caller adds model and tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/base/posix_file.h"

namespace ofsdp::importer {

struct ExternalRef {
  std::string location;
  int64_t offset = 0;
  std::optional<int64_t> length;
};

// Enters one StringStringEntryProto; keys without a meaning here (checksum) are passed over.
Status parse_external_entry(std::span<const std::byte> entry, int64_t origin, ExternalRef& ref);

Result<OpenFile> open_external(const std::string& model_folder, const std::string& location);

// The bytes of the tensor: `expected` when its dtype and shape tell, else the length given, else
// the rest of the file after the offset. They are inside of the file.
Result<int64_t> external_bytes(const ExternalRef& ref, const OpenFile& file,
                               std::optional<int64_t> expected);

}  // namespace ofsdp::importer
