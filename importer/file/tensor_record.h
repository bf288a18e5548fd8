// A serialized TensorProto without a copy of its data, and the data fields of a TensorProto:
// raw_data, or one of the lists float_data, int32_data, ... that ONNX chooses by the type of the
// elements. Lists may be packed or not and may come in several pieces.
//
// `numel` elements of `dims` exist, as raw bytes, as one list of values or as a reference to
// external data. Parsing compares their number with `dims` if the type has a known size (not for
// 4-bit and 8-bit floats and the like).
//
// Holds offsets into the file and no views. Errors: kInput, starting with "initializer 'w': ",
// without the name of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/file/wire.h"
#include "kernels/base/posix_file.h"

namespace ofsdp::importer {

// External data of ONNX: tensors with bytes in files next to the model, named by TensorProto's
// external_data entries (location, offset, length).
//
// A location is a path relative to the folder of the model and must stay inside: absolute paths and
// `..` are refused, so a model cannot read other files. A symbolic link must lead to a file in that
// folder or, if the model's path is itself a link, in the folder of the real file. Hugging Face's
// cache has both: snapshots/REVISION/model.onnx and its data are links to files in the same folder,
// blobs/.
//
// Errors: kInput naming the data file, expected and found; the caller adds model and tensor.

struct ExternalRef {
  std::string location;
  int64_t offset = 0;
  std::optional<int64_t> length;
};

// Enters one StringStringEntryProto; ignores keys without a meaning here (checksum).
Status parse_external_entry(std::span<const std::byte> entry, int64_t origin, ExternalRef& ref);

// Opens the data file `location` of the model at path `model`.
Result<OpenFile> open_external(const std::string& model, const std::string& location);

// Returns the bytes of the tensor: `expected` if dtype and shape tell, else the given length, else
// the rest of the file after the offset. Checks that they are inside of the file.
Result<int64_t> external_bytes(const ExternalRef& ref, const OpenFile& file,
                               std::optional<int64_t> expected);

namespace tensor_field {  // their numbers, and those of the other fields
enum : uint32_t {
  kDims = 1,
  kDataType = 2,
  kFloatData = 4,
  kInt32Data = 5,
  kStringData = 6,
  kInt64Data = 7,
  kName = 8,
  kRawData = 9,
  kDoubleData = 10,
  kUint64Data = 11,
  kExternalData = 13,
  kDataLocation = 14,
};
}  // namespace tensor_field

// Returns whether a field holds elements: raw_data or one of the lists.
bool is_data_field(uint32_t number);

bool half_bytes(uint64_t onnx_type);   // two elements share a byte: uint4, int4
int64_t per_byte(DType dtype);         // elements in a byte of raw_data; also 1 for larger types
uint32_t list_field(DType dtype);      // the list for a type
int64_t fixed_bytes(uint32_t number);  // bytes of an element in a list; 0: varints

struct TensorRecord {
  std::string name;
  uint64_t onnx_type = 0;
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;
  int64_t numel = 0;
  std::optional<ExternalRef> external;

  // The position of the data inside of the message; see Initializer.
  Initializer::Encoding encoding = Initializer::Encoding::kDense;
  int64_t offset = 0;
  int64_t bytes = 0;
  int64_t stride = 0;

  std::optional<int64_t> expected_bytes() const;  // numel elements as raw data, if dtype tells
  std::string label() const;                      // "initializer 'w'"
};

// `body`: the TensorProto at `origin` in the file.
Result<TensorRecord> parse_tensor(std::span<const std::byte> body, int64_t origin);

// Decodes elements first .. first + dst.size() - 1 of the list in a whole TensorProto.
Status decode_list(std::span<const std::byte> body, DType dtype, int64_t first,
                   std::span<float> dst);

}  // namespace ofsdp::importer
