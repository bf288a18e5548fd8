#include "importer/file/wire.h"

#include <cstring>

#include "kernels/base/status.h"
#include "kernels/base/text.h"

namespace ofsdp::importer {

Result<uint64_t> WireReader::varint() {
  const int64_t begin = offset();
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (done()) return input_error("number at byte {} is cut off at byte {}", begin, offset());
    const auto byte = std::to_integer<uint64_t>(bytes_[position_++]);
    if (shift == 63 && byte > 1) break;
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  return input_error("number at byte {} has more than 64 bits", begin);
}

Status WireReader::take(WireField& field, uint64_t bytes) {
  const size_t left = bytes_.size() - position_;
  OFSDP_REJECT_IF(bytes > left, "field {} at byte {}: expected {} bytes, found {}", field.number,
                  field.begin, bytes, left);
  field.body = offset();
  field.bytes = bytes_.subspan(position_, static_cast<size_t>(bytes));
  position_ += static_cast<size_t>(bytes);
  field.end = offset();
  return ok_status();
}

Result<WireField> WireReader::next() {
  WireField field;
  const size_t first = position_;
  field.begin = offset();
  OFSDP_ASSIGN_OR_RETURN(const uint64_t tag, varint());
  if (tag >> 32 != 0 || tag >> 3 == 0) return input_error("no field at byte {}", field.begin);
  field.number = static_cast<uint32_t>(tag >> 3);
  field.type = static_cast<WireType>(tag & 7);
  switch (field.type) {
    case WireType::kVarint: {
      const size_t start = position_;
      field.body = offset();
      OFSDP_ASSIGN_OR_RETURN(field.value, varint());
      field.bytes = bytes_.subspan(start, position_ - start);
      field.end = offset();
      break;
    }
    case WireType::kBytes: {
      OFSDP_ASSIGN_OR_RETURN(const uint64_t bytes, varint());
      OFSDP_RETURN_IF_ERROR(take(field, bytes));
      break;
    }
    case WireType::kFixed32:
    case WireType::kFixed64: {
      OFSDP_RETURN_IF_ERROR(take(field, field.type == WireType::kFixed32 ? 4 : 8));
      std::memcpy(&field.value, field.bytes.data(),
                  field.bytes.size());  // little-endian, as we are
      break;
    }
    default:
      return input_error("field {} at byte {} has wire type {}, expected 0, 1, 2 or 5",
                         field.number, field.begin, tag & 7);
  }
  field.whole = bytes_.subspan(first, position_ - first);
  return field;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string string_field(std::span<const std::byte> message, uint32_t number) {
  std::string text;
  for (WireReader reader(message); !reader.done();) {
    const Result<WireField> field = reader.next();
    if (!field.ok()) break;
    if (field->number == number && field->type == WireType::kBytes) text = as_text(field->bytes);
  }
  return text;
}

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void append_tag(std::string& out, uint32_t number, WireType type) {
  append_varint(out, uint64_t{number} << 3 | static_cast<uint64_t>(type));
}

void append_int(std::string& out, uint32_t number, int64_t value) {
  append_tag(out, number, WireType::kVarint);
  append_varint(out, static_cast<uint64_t>(value));
}

void append_bytes(std::string& out, uint32_t number, std::string_view bytes) {
  append_tag(out, number, WireType::kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

std::string int_field(uint32_t number, int64_t value) {
  std::string out;
  append_int(out, number, value);
  return out;
}

std::string bytes_field(uint32_t number, std::string_view bytes) {
  std::string out;
  append_bytes(out, number, bytes);
  return out;
}

std::string printable(std::string_view text) {
  constexpr size_t kMax = 200;
  return escaped(text.substr(0, kMax)) + (text.size() > kMax ? "..." : "");
}

}  // namespace ofsdp::importer
