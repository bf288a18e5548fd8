// Protobuf's wire format: an in-place, bounds-checked reader, and a writer for a few fields.
//
// A WireReader walks one message's fields in a span. For a nested message, the caller makes
// another WireReader over `field.bytes`, with origin `field.body`, and so limits the depth. Refuses
// groups (wire types 3 and 4), which ONNX does not use. Offsets are relative to the file;
// `origin` is the span's offset. Follows https://protobuf.dev/programming-guides/encoding.
//
// The bytes must outlive reader and fields. Errors: kInput with field, offset, expected and found,
// without the file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace ofsdp::importer {

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct WireField {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t value = 0;                // varint or fixed number
  std::span<const std::byte> bytes;  // the payload
  std::span<const std::byte> whole;  // tag, length and payload
  int64_t begin = 0;                 // offset of the tag
  int64_t body = 0;                  // offset of the payload
  int64_t end = 0;                   // offset after the payload
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes, int64_t origin = 0)
      : bytes_(bytes), origin_(origin) {}

  bool done() const { return position_ == bytes_.size(); }
  int64_t offset() const { return origin_ + static_cast<int64_t>(position_); }
  Result<WireField> next();
  Result<uint64_t> varint();  // without a tag, as in packed fields

 private:
  Status take(WireField& field, uint64_t bytes);

  std::span<const std::byte> bytes_;
  int64_t origin_;
  size_t position_ = 0;
};

std::string_view as_text(std::span<const std::byte> bytes);
// Returns the last string field with that number, or "" if there is none. Ignores everything from
// the first malformed field on.
std::string string_field(std::span<const std::byte> message, uint32_t number);

void append_varint(std::string& out, uint64_t value);
void append_tag(std::string& out, uint32_t number, WireType type);
void append_int(std::string& out, uint32_t number, int64_t value);
void append_bytes(std::string& out, uint32_t number, std::string_view bytes);
// Returns a whole field.
std::string int_field(uint32_t number, int64_t value);
std::string bytes_field(uint32_t number, std::string_view bytes);

// Returns a name from a file for a one-line message: control characters as \xNN, long names cut.
std::string printable(std::string_view text);

// Field numbers of ONNX's messages that we read or write without the ONNX library, from onnx.proto;
// tensor_record.h has TensorProto's.

namespace model_field {
enum : uint32_t {
  kIrVersion = 1,
  kProducerName = 2,
  kProducerVersion = 3,
  kDomain = 4,
  kModelVersion = 5,
  kDocString = 6,
  kGraph = 7,
  kOpsetImport = 8,
  kMetadataProps = 14,
  kTrainingInfo = 20,
  kFunctions = 25,
  kConfiguration = 26,  // ModelProto's highest number
};
}  // namespace model_field

namespace graph_field {
enum : uint32_t { kNode = 1, kInitializer = 5, kInput = 11, kOutput = 12, kSparseInitializer = 15 };
}  // namespace graph_field

namespace node_field {
enum : uint32_t {
  kInput = 1,
  kOutput = 2,
  kName = 3,
  kOperator = 4,
  kAttribute = 5,
  kDomain = 7,
};
}  // namespace node_field

namespace attribute_field {
enum : uint32_t { kName = 1, kInt = 3, kTensor = 5, kGraph = 6, kGraphs = 11 };
}  // namespace attribute_field

namespace training_info_field {
enum : uint32_t { kAlgorithm = 2 };
}  // namespace training_info_field

namespace sparse_tensor_field {
enum : uint32_t { kValues = 1 };
}  // namespace sparse_tensor_field

// StringStringEntryProto, the entries in external_data.
namespace entry_field {
enum : uint32_t { kKey = 1, kValue = 2 };
}  // namespace entry_field

namespace value_info_field {
enum : uint32_t { kName = 1, kType = 2 };
}  // namespace value_info_field

// TypeProto, TypeProto.Tensor, TensorShapeProto, Dimension.
namespace type_field {
enum : uint32_t { kTensorType = 1 };
}  // namespace type_field

namespace tensor_type_field {
enum : uint32_t { kElementType = 1, kShape = 2 };
}  // namespace tensor_type_field

namespace shape_field {
enum : uint32_t { kDimension = 1 };
}  // namespace shape_field

namespace dimension_field {
enum : uint32_t { kValue = 1 };
}  // namespace dimension_field

}  // namespace ofsdp::importer
