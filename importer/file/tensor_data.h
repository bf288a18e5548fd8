// The data fields of a TensorProto: raw_data, or one of the lists float_data, int32_data, ... that
// ONNX chooses by the type of the elements. Lists may be packed or not, and come in several pieces.
//
// Ownership: offsets and views. Threads: any.
// Errors: kInput with expected and found; the caller adds file and tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "importer/file/wire.h"
#include "kernels/core/dtype.h"

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

// Whether a field holds elements: raw_data or one of the lists.
bool is_data_field(uint32_t number);

uint32_t list_field(DType dtype);      // the list of a type
int64_t fixed_bytes(uint32_t number);  // of an element of a list; 0: varints

// What was seen of the data inside of the message.
struct DataSeen {
  uint32_t number = 0;  // raw_data or a list; 0: none
  int64_t count = 0;    // elements of a list, bytes of raw_data
  int64_t offset = 0;   // of the first element
  int64_t bytes = 0;    // of the first piece
  int64_t stride = 0;   // 0: no regular places
};

Status see_raw(const WireField& field, DataSeen& seen);
Status see_list(const WireField& field, DataSeen& seen);

// Elements first .. first + dst.size() - 1 from the list in a whole TensorProto.
Status decode_list(std::span<const std::byte> body, DType dtype, int64_t first,
                   std::span<float> dst);

}  // namespace ofsdp::importer
