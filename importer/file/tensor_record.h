// A serialized TensorProto without a copy of the data. Data fields are raw_data, or a list
// (float_data, int32_data, ...) that ONNX chooses by element type. Lists may be packed or not and
// may come in several pieces.
//
// `numel` elements exist, as raw bytes, as one list or as a reference to external data. Parsing
// compares `numel` with `dims` if the type has a known size (not for 4-bit and 8-bit floats and the
// like).
//
// Holds offsets into the file and no views. Errors: kInput, starting with "initializer 'w': ",
// without the file's name.
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
#include "kernels/base/status.h"
#include "kernels/core/dtype.h"

namespace ofsdp::importer {

// ONNX's external data: tensors with bytes in files next to the model, named by TensorProto's
// external_data entries (location, offset, length).
//
// A location is a path relative to the model's folder and must stay inside: absolute paths and `..`
// are refused, so a model cannot read other files. A symbolic link must lead to a file in that
// folder or, if the model's path is itself a link, in the real file's folder. Hugging Face's cache
// has both: snapshots/REVISION/model.onnx and the data are links to files in the same folder,
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

// Opens data file `location` for the model at path `model`.
Result<OpenFile> open_external(const std::string& model, const std::string& location);

// Returns the tensor's byte count: `expected` if dtype and shape tell, else the given length, else
// the rest after the offset. Checks that the file has these bytes.
Result<int64_t> external_bytes(const ExternalRef& ref, const OpenFile& file,
                               std::optional<int64_t> expected);

namespace tensor_field {  // their numbers, and the other fields'
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

// Returns whether a field holds elements: raw_data or a list.
bool is_data_field(uint32_t number);

bool half_bytes(uint64_t onnx_type);   // two elements share a byte: uint4, int4
int64_t per_byte(DType dtype);         // elements in a raw_data byte; also 1 for larger types
uint32_t list_field(DType dtype);      // the list for a type
int64_t fixed_bytes(uint32_t number);  // an element's bytes in a list; 0: varints

struct TensorRecord {
  std::string name;
  uint64_t onnx_type = 0;
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;
  int64_t numel = 0;
  std::optional<ExternalRef> external;

  // The data's place inside the message; see Initializer.
  Initializer::Encoding encoding = Initializer::Encoding::kDense;
  int64_t offset = 0;
  int64_t bytes = 0;
  int64_t stride = 0;

  std::optional<int64_t> expected_bytes() const;  // numel elements as raw data, if dtype tells
  std::string label() const;                      // "initializer 'w'"
};

// `body`: the TensorProto at `origin` in the file.
Result<TensorRecord> parse_tensor(std::span<const std::byte> body, int64_t origin);

// Decodes elements first .. first + dst.size() - 1 from the list in a whole TensorProto.
Status decode_list(std::span<const std::byte> body, DType dtype, int64_t first,
                   std::span<float> dst);

// Converts floating-point elements between the file's type and float32. Rounds to 16-bit types to
// nearest even, and to float64 as the processor does. `stride`: bytes from element to element;
// dtype_size if dense.

void decode_floats(DType dtype, const std::byte* src, int64_t stride, std::span<float> dst);
void encode_floats(DType dtype, std::span<const float> src, int64_t stride, std::byte* dst);

// Integers in a file: reads them, dequantizes them to a weight's values, and quantizes values back.
//
//   value = (q - zero_point) * scale
//   q     = round(value / scale) + zero_point, half to even, clipped to the type's range
//
// ofsdp.FakeQuantize rounds in the same way, so forward uses the same integers. An int32 bias's
// values are divided in double.
//
// Errors: kFault for the disk.

// Returns the type that holds a TensorProto.DataType's integers if a weight or zero point may have
// it; else kUndefined. int4 and uint4 are int8 and uint8 with 4 bits.
DType integer_carrier(int onnx_type);
int stored_type(const Initializer& tensor);  // TensorProto.DataType
std::string integer_name(int onnx_type);     // "int4"; "type 7" if it has no name

Status read_integers(const OpenFile& file, const Initializer& place, int64_t first,
                     std::span<int64_t> dst);

// Dequantizes integers to elements `first` ...
void dequantize(const Quantization& q, int64_t first, std::span<const int64_t> integers,
                std::span<float> dst);
void requantize(const Quantization& q, int64_t first, std::span<const float> src,
                std::span<int64_t> integers);

// Returns `integers` as bytes of `place`. REQUIRES: `first` is even if two elements share a byte.
std::vector<std::byte> integer_bytes(const Initializer& place, std::span<const int64_t> integers);

}  // namespace ofsdp::importer
