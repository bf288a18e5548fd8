// External data of ONNX: tensors whose bytes are in files next to the model, named by TensorProto's
// external_data entries (location, offset, length).
//
// A location is a path relative to the model's folder and stays in it: absolute ones and `..` are
// refused, so a model cannot read other files. A symbolic link must lead to a file in that folder
// or in the folder of the real file, if the model's path is a link itself. Hugging Face's cache has
// both: snapshots/REVISION/model.onnx and its data are links to files in the same folder, blobs/.
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

// Opens the data file that the model at path `model` names.
Result<OpenFile> open_external(const std::string& model, const std::string& location);

// The bytes of the tensor: `expected` when its dtype and shape tell, else the length given, else
// the rest of the file after the offset. They are inside of the file.
Result<int64_t> external_bytes(const ExternalRef& ref, const OpenFile& file,
                               std::optional<int64_t> expected);

}  // namespace ofsdp::importer
