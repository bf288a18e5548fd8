// Protobuf's wire format, read in place and bounds-checked, and the few bytes of it that we write.
//
// A WireReader walks the fields of one message in a span. Another WireReader over `field.bytes`
// reads a nested message, so the caller limits the depth. Groups (wire types 3 and 4) are refused:
// ONNX has none. Offsets are those of the file; `origin` is the offset of the span's first byte.
// Follows https://protobuf.dev/programming-guides/encoding.
//
// The bytes must outlive reader and fields. Threads: any, one for each reader. Errors: kInput with
// field, offset, expected and found, without the file's name.
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
  uint64_t value = 0;                // of a varint or a fixed one
  std::span<const std::byte> bytes;  // the payload
  std::span<const std::byte> whole;  // tag, length and payload
  int64_t begin = 0;                 // offset of the tag,
  int64_t body = 0;                  // of the payload,
  int64_t end = 0;                   // and of the byte after it
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes, int64_t origin = 0)
      : bytes_(bytes), origin_(origin) {}

  bool done() const { return position_ == bytes_.size(); }
  int64_t offset() const { return origin_ + static_cast<int64_t>(position_); }
  Result<WireField> next();
  Result<uint64_t> varint();  // a bare one, as packed fields hold them

 private:
  Status take(WireField& field, uint64_t bytes);

  std::span<const std::byte> bytes_;
  int64_t origin_;
  size_t position_ = 0;
};

std::string_view as_text(std::span<const std::byte> bytes);
// Returns the last string field of that number; "" when there is none before a broken field.
std::string string_field(std::span<const std::byte> message, uint32_t number);

void append_varint(std::string& out, uint64_t value);
void append_tag(std::string& out, uint32_t number, WireType type);
void append_int(std::string& out, uint32_t number, int64_t value);
void append_bytes(std::string& out, uint32_t number, std::string_view bytes);
// Returns a whole field.
std::string int_field(uint32_t number, int64_t value);
std::string bytes_field(uint32_t number, std::string_view bytes);

// Returns a name from a file fit for a message of one line: control characters as \xNN, long ones
// cut.
std::string printable(std::string_view text);

}  // namespace ofsdp::importer
