#include "runtime/data/tar_index.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "kernels/base/text.h"

namespace ofsdp::runtime {
namespace {

constexpr uint64_t kTarBlock = 512;
constexpr uint64_t kMostExtraBytes = 1 << 20;  // of a long name or a pax header

using TarHeader = std::array<char, kTarBlock>;

// A field of the header: a text that ends with a zero byte or the field.
std::string_view tar_text(const TarHeader& header, size_t at, size_t bytes) {
  const std::string_view field(header.data() + at, bytes);
  return field.substr(0, field.find('\0'));
}

// Octal digits between blanks, or GNU's base 256 with the first bit set.
std::optional<uint64_t> tar_number(const TarHeader& header, size_t at, size_t bytes) {
  uint64_t value = 0;
  if ((header[at] & 0x80) != 0) {
    for (size_t i = 1; i < bytes; ++i) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(header[at + i]);
    }
    return header[at] == '\x80' ? std::optional(value) : std::nullopt;
  }
  std::string_view text = tar_text(header, at, bytes);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  text = text.substr(0, text.find(' '));
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value, 8);
  if (text.empty()) return 0;
  return error == std::errc() && end == text.end() ? std::optional(value) : std::nullopt;
}

// The sum of all bytes, the checksum's own counted as blanks.
bool has_checksum(const TarHeader& header) {
  constexpr size_t kAt = 148, kBytes = 8;
  uint64_t sum = 0;
  for (size_t i = 0; i < header.size(); ++i) {
    const bool own = i >= kAt && i < kAt + kBytes;
    sum += own ? static_cast<unsigned char>(' ') : static_cast<unsigned char>(header[i]);
  }
  return tar_number(header, kAt, kBytes) == sum;
}

std::string header_name(const TarHeader& header) {
  const std::string_view prefix =
      tar_text(header, 257, 5) == "ustar" ? tar_text(header, 345, 155) : "";
  const std::string name(tar_text(header, 0, 100));
  return prefix.empty() ? name : std::string(prefix) + "/" + name;
}

class TarReader {
 public:
  explicit TarReader(const ByteSource& source) : source_(source) {}

  Result<std::vector<TarMember>> run() {
    while (at_ + kTarBlock <= source_.size()) {
      TarHeader header{};
      OFSDP_RETURN_IF_ERROR(source_.read(at_, std::as_writable_bytes(std::span(header))));
      if (std::ranges::count(header, '\0') == std::ssize(header)) return found();  // the end
      OFSDP_RETURN_IF_ERROR(read_member(header));
    }
    OFSDP_REJECT_IF(at_ < source_.size(), "{}: truncated: expected a header of {} bytes at byte {}",
                    source_.path(), kTarBlock, at_);
    return found();
  }

 private:
  Result<std::vector<TarMember>> found() {
    OFSDP_REJECT_IF(members_.empty(), "{}: expected a .tar archive with files, found none",
                    source_.path());
    return std::move(members_);
  }

  Status read_member(const TarHeader& header) {
    OFSDP_REJECT_IF(!has_checksum(header),
                    "{}: expected a header of .tar at byte {}, found other bytes{}", source_.path(),
                    at_, at_ == 0 ? remark(header) : "");
    const auto stated = tar_number(header, 124, 12);
    OFSDP_REJECT_IF(!stated, "{}: expected a size in the header at byte {}, found none",
                    source_.path(), at_);
    const char type = header[156];
    const bool extra = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    const uint64_t bytes = extra ? *stated : long_size_.value_or(*stated), begin = at_ + kTarBlock;
    OFSDP_REJECT_IF(bytes > source_.size() - begin,
                    "{}: truncated: expected {} bytes of '{}' from byte {}, found {}",
                    source_.path(), bytes, header_name(header), begin, source_.size() - begin);
    OFSDP_RETURN_IF_ERROR(extra ? read_extra(type, begin, bytes) : add(header, type, begin, bytes));
    at_ = begin + (bytes + kTarBlock - 1) / kTarBlock * kTarBlock;
    return ok_status();
  }

  static std::string remark(const TarHeader& header) {
    const std::string_view bytes(header.data(), 2);
    return bytes == "\x1f\x8b" ? ", which looks like gzip data: unpack it first" : "";
  }

  // Applies to the next member.
  Status read_extra(char type, uint64_t begin, uint64_t bytes) {
    OFSDP_REJECT_IF(bytes > kMostExtraBytes,
                    "{}: expected at most {} bytes of an extended header at byte {}, found {}",
                    source_.path(), kMostExtraBytes, at_, bytes);
    if (type == 'g' || type == 'K') return ok_status();
    std::string text(bytes, '\0');
    OFSDP_RETURN_IF_ERROR(source_.read(begin, std::as_writable_bytes(std::span(text))));
    if (type == 'L') {
      long_name_ = text.substr(0, text.find('\0'));
      return ok_status();
    }
    return read_records(text);
  }

  // pax: records of "LENGTH KEY=VALUE\n", the length counting all of it.
  Status read_records(std::string_view text) {
    while (!text.empty()) {
      size_t length = 0;
      const auto [end, error] = std::from_chars(text.begin(), text.end(), length);
      const auto digits = static_cast<size_t>(end - text.begin());
      const bool whole = error == std::errc() && length > digits + 1 && length <= text.size() &&
                         text[digits] == ' ' && text[length - 1] == '\n';
      OFSDP_REJECT_IF(!whole, "{}: expected records of a pax header at byte {}, found others",
                      source_.path(), at_);
      OFSDP_RETURN_IF_ERROR(read_record(text.substr(digits + 1, length - digits - 2)));
      text.remove_prefix(length);
    }
    return ok_status();
  }

  Status read_record(std::string_view record) {
    const size_t equals = record.find('=');
    const std::string_view key = record.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? "" : record.substr(equals + 1);
    OFSDP_REJECT_IF(key.starts_with("GNU.sparse"), "{}: a sparse file at byte {} is not read here",
                    source_.path(), at_);
    if (key == "path") long_name_ = std::string(value);
    if (key != "size") return ok_status();
    uint64_t bytes = 0;
    const auto [end, error] = std::from_chars(value.begin(), value.end(), bytes);
    OFSDP_REJECT_IF(error != std::errc() || end != value.end(),
                    "{}: expected a size in the pax header at byte {}, found '{}'", source_.path(),
                    at_, value.substr(0, 40));
    long_size_ = bytes;
    return ok_status();
  }

  Status add(const TarHeader& header, char type, uint64_t begin, uint64_t bytes) {
    const std::string name = long_name_.value_or(header_name(header));
    long_name_.reset();
    long_size_.reset();
    if (type == '5') return ok_status();  // a folder
    const bool file = type == '0' || type == '\0' || type == '7';
    OFSDP_REJECT_IF(!file, "{}: expected files, found '{}' of type '{}' (a link or a device)",
                    source_.path(), name, std::string(1, type));
    members_.push_back({name, begin, bytes});
    return ok_status();
  }

  const ByteSource& source_;
  uint64_t at_ = 0;
  std::optional<std::string> long_name_;
  std::optional<uint64_t> long_size_;
  std::vector<TarMember> members_;
};

}  // namespace

Result<std::vector<TarMember>> tar_members(const ByteSource& source) {
  return TarReader(source).run();
}

}  // namespace ofsdp::runtime
