// TensorRecord: what a serialized TensorProto says of its tensor, without a copy of its data, and
// the data fields of a TensorProto: raw_data, or one of the lists float_data, int32_data, ... that
// ONNX chooses by the type of the elements. Lists may be packed or not and come in several pieces.
//
// `numel` elements of `dims` are there, as raw bytes, as one list of values or as a reference to
// external data. Their number was compared with `dims` while parsing when the size of the type is
// known (4-bit and 8-bit floats and the like are not checked).
//
// Holds offsets into the file, no views. Threads: any, once made. Errors: kInput, starting with
// "initializer 'w': ", without the file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "importer/file/external_data.h"
#include "importer/file/initializer.h"
#include "importer/file/wire.h"

namespace ofsdp::importer {

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

bool half_bytes(uint64_t onnx_type);   // whether two elements share a byte: uint4, int4
int64_t per_byte(DType dtype);         // elements in a byte of raw_data; 1 of larger types too
uint32_t list_field(DType dtype);      // the list of a type
int64_t fixed_bytes(uint32_t number);  // of an element of a list; 0: varints

struct TensorRecord {
  std::string name;
  uint64_t onnx_type = 0;
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;
  int64_t numel = 0;
  std::optional<ExternalRef> external;

  // The place of data inside of the message; see Initializer.
  Initializer::Encoding encoding = Initializer::Encoding::kDense;
  int64_t offset = 0;
  int64_t bytes = 0;
  int64_t stride = 0;

  std::optional<int64_t> expected_bytes() const;  // numel elements as raw data, if dtype tells
  std::string label() const;                      // "initializer 'w'"
};

// `body` is the TensorProto at `origin` in the file.
Result<TensorRecord> parse_tensor(std::span<const std::byte> body, int64_t origin);

// Elements first .. first + dst.size() - 1 from the list in a whole TensorProto.
Status decode_list(std::span<const std::byte> body, DType dtype, int64_t first,
                   std::span<float> dst);

}  // namespace ofsdp::importer
