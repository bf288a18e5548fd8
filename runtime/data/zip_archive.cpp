#include "runtime/data/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/escaped.h"
#include "kernels/base/reject.h"

namespace ofsdp::runtime {
namespace {

constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint32_t kEntrySignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr uint64_t kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr uint64_t kEntryBytes = 46, kLocalBytes = 30;
constexpr uint64_t kMostComment = 0xffff;
constexpr uint64_t kMostDirectory = uint64_t{64} << 20;
constexpr size_t kZipBlock = 64 * 1024;
constexpr uint64_t kMostDeflate = 1032;  // what deflate can shrink at best
constexpr int kRawWindow = -15;          // zlib's way to say: neither header nor trailer

// Little-endian numbers of a record that has been read.
class Record {
 public:
  explicit Record(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t number(size_t at, size_t size) const {
    uint64_t value = 0;
    for (size_t i = size; i-- > 0;) value = value << 8 | std::to_integer<uint64_t>(bytes_[at + i]);
    return value;
  }
  uint32_t u16(size_t at) const { return static_cast<uint32_t>(number(at, 2)); }
  uint32_t u32(size_t at) const { return static_cast<uint32_t>(number(at, 4)); }
  uint64_t u64(size_t at) const { return number(at, 8); }

 private:
  std::span<const std::byte> bytes_;
};

Result<std::vector<std::byte>> read_record(const ByteSource& source, uint64_t offset,
                                           uint64_t size) {
  OFSDP_REJECT_IF(offset > source.size() || size > source.size() - offset,
                  "{}: is no whole zip file: expected {} bytes at {}, found {}", source.path(),
                  size, offset, source.size());
  std::vector<std::byte> bytes(size);
  OFSDP_RETURN_IF_ERROR(source.read(offset, bytes));
  return bytes;
}

struct Directory {
  uint64_t offset = 0, bytes = 0;
};

// The end of the directory stands at the end of the file, before a comment.
Result<Directory> find_directory(const ByteSource& source) {
  const uint64_t tail = std::min(source.size(), kEndBytes + kMostComment);
  const uint64_t start = source.size() - tail;
  OFSDP_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_record(source, start, tail));
  const Record record(bytes);
  for (uint64_t at = tail < kEndBytes ? 0 : tail - kEndBytes + 1; at-- > 0;) {
    if (record.u32(at) != kEndSignature) continue;
    Directory directory{record.u32(at + 16), record.u32(at + 12)};
    if (directory.offset != UINT32_MAX && directory.bytes != UINT32_MAX) return directory;
    OFSDP_REJECT_IF(start + at < kLocator64Bytes, "{}: is no whole zip file", source.path());
    OFSDP_ASSIGN_OR_RETURN(const auto locator,
                           read_record(source, start + at - kLocator64Bytes, kLocator64Bytes));
    OFSDP_REJECT_IF(Record(locator).u32(0) != kLocator64Signature, "{}: is no whole zip file",
                    source.path());
    OFSDP_ASSIGN_OR_RETURN(const auto end,
                           read_record(source, Record(locator).u64(8), kEnd64Bytes));
    OFSDP_REJECT_IF(Record(end).u32(0) != kEnd64Signature, "{}: is no whole zip file",
                    source.path());
    return Directory{Record(end).u64(48), Record(end).u64(40)};
  }
  return input_error("{}: expected a zip file (.npz), found no directory at its end",
                     source.path());
}

// Sizes and offset of 64 bits stand in an extra field, in this order, where those of 32 are full.
bool read_extra(const Record& record, size_t at, size_t end, ZipMember& member) {
  while (at + 4 <= end) {
    const size_t size = record.u16(at + 2);
    if (at + 4 + size > end) return false;
    if (record.u16(at) == 1) {
      size_t from = at + 4;
      for (uint64_t* field : {&member.bytes, &member.packed, &member.header}) {
        if (*field != UINT32_MAX) continue;
        if (from + 8 > at + 4 + size) return false;
        *field = record.u64(from);
        from += 8;
      }
    }
    at += 4 + size;
  }
  return true;
}

Status check_member(const ByteSource& source, const ZipMember& member, uint32_t flags,
                    uint32_t method) {
  const std::string subject = format_text("{}: member '{}'", source.path(), escaped(member.name));
  OFSDP_REJECT_IF((flags & 1) != 0, "{}: expected it unencrypted", subject);
  OFSDP_REJECT_IF(method != 0 && method != 8, "{}: expected it stored or deflated, found method {}",
                  subject, method);
  OFSDP_REJECT_IF(!member.deflated && member.packed != member.bytes,
                  "{}: expected {} bytes, found {}", subject, member.bytes, member.packed);
  OFSDP_REJECT_IF(member.packed > source.size() || member.bytes / kMostDeflate > member.packed,
                  "{}: expected {} bytes of {}, more than the file can hold", subject, member.bytes,
                  member.packed);
  return {};
}

// Inflates from the member's first byte until `dst` is full or the stream ends.
Result<size_t> inflate_into(const ByteSource& source, const ZipMember& member,
                            std::span<std::byte> dst, bool whole) {
  OFSDP_ASSIGN_OR_RETURN(uint64_t offset, member_offset(source, member));
  z_stream stream{};
  OFSDP_FAULT_IF(inflateInit2(&stream, kRawWindow) != Z_OK, "{}: zlib has no memory",
                 source.path());
  std::vector<std::byte> input(kZipBlock);
  uint64_t left = member.packed;
  size_t total = 0;
  Status problem;
  for (int code = Z_OK; code != Z_STREAM_END && problem.ok();) {
    if (stream.avail_in == 0) {
      const size_t count = std::min<uint64_t>(left, input.size());
      if (count == 0) break;
      problem = source.read(offset, {input.data(), count});
      offset += count;
      left -= count;
      stream.next_in = reinterpret_cast<Bytef*>(input.data());
      stream.avail_in = static_cast<uInt>(count);
    }
    const size_t room = std::min(dst.size() - total, size_t{1} << 30);
    if (room == 0 && !whole) break;
    Bytef none = 0;  // a whole member's end may follow its last byte
    stream.next_out = room == 0 ? &none : reinterpret_cast<Bytef*>(dst.data() + total);
    stream.avail_out = static_cast<uInt>(room);
    code = inflate(&stream, Z_NO_FLUSH);
    total += room - stream.avail_out;
    if (code == Z_STREAM_END) break;
    const bool stuck = code == Z_BUF_ERROR && (room == 0 || stream.avail_in > 0);
    if ((code != Z_OK && code != Z_BUF_ERROR) || stuck) {
      problem = input_error("{}: member '{}': corrupted after {} bytes", source.path(),
                            escaped(member.name), total);
    }
  }
  inflateEnd(&stream);
  if (!problem.ok()) return problem;
  return total;
}

}  // namespace

Result<std::vector<ZipMember>> zip_members(const ByteSource& source) {
  OFSDP_ASSIGN_OR_RETURN(const Directory directory, find_directory(source));
  OFSDP_REJECT_IF(directory.bytes > kMostDirectory,
                  "{}: expected a directory of at most {} bytes, "
                  "found {}",
                  source.path(), kMostDirectory, directory.bytes);
  OFSDP_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                         read_record(source, directory.offset, directory.bytes));
  const Record record(bytes);
  std::vector<ZipMember> members;
  std::set<std::string> names;
  for (size_t at = 0; at < bytes.size();) {
    const bool whole = at + kEntryBytes <= bytes.size() && record.u32(at) == kEntrySignature;
    const size_t name = at + kEntryBytes;
    const size_t extra = whole ? name + record.u16(at + 28) : 0;
    const size_t comment = whole ? extra + record.u16(at + 30) : 0;
    const size_t end = whole ? comment + record.u16(at + 32) : 0;
    OFSDP_REJECT_IF(!whole || end > bytes.size(), "{}: its directory is damaged at byte {}",
                    source.path(), directory.offset + at);
    ZipMember member{std::string(reinterpret_cast<const char*>(bytes.data() + name), extra - name),
                     record.u16(at + 10) == 8,
                     record.u32(at + 42),
                     record.u32(at + 20),
                     record.u32(at + 24),
                     record.u32(at + 16)};
    OFSDP_REJECT_IF(!read_extra(record, extra, comment, member),
                    "{}: its directory is damaged at byte {}", source.path(),
                    directory.offset + extra);
    OFSDP_RETURN_IF_ERROR(check_member(source, member, record.u16(at + 8), record.u16(at + 10)));
    OFSDP_REJECT_IF(!names.insert(member.name).second,
                    "{}: member '{}' stands twice in its directory", source.path(),
                    escaped(member.name));
    members.push_back(std::move(member));
    at = end;
  }
  return members;
}

Result<uint64_t> member_offset(const ByteSource& source, const ZipMember& member) {
  OFSDP_ASSIGN_OR_RETURN(const auto bytes, read_record(source, member.header, kLocalBytes));
  const Record local(bytes);
  const uint64_t offset = member.header + kLocalBytes + local.u16(26) + local.u16(28);
  const bool fits = offset <= source.size() && member.packed <= source.size() - offset;
  OFSDP_REJECT_IF(local.u32(0) != kLocalSignature || !fits,
                  "{}: member '{}' is not where the directory says", source.path(),
                  escaped(member.name));
  return offset;
}

Result<size_t> inflate_member_prefix(const ByteSource& source, const ZipMember& member,
                                     std::span<std::byte> dst) {
  return inflate_into(source, member, dst.first(std::min<uint64_t>(dst.size(), member.bytes)),
                      false);
}

Status inflate_member(const ByteSource& source, const ZipMember& member, std::span<std::byte> dst) {
  OFSDP_ASSIGN_OR_RETURN(const size_t found, inflate_into(source, member, dst, true));
  OFSDP_REJECT_IF(found != dst.size(), "{}: member '{}': expected {} bytes, found {}",
                  source.path(), escaped(member.name), dst.size(), found);
  uLong crc = crc32(0, nullptr, 0);
  for (size_t at = 0; at < dst.size(); at += kZipBlock) {
    const auto part = dst.subspan(at, std::min(kZipBlock, dst.size() - at));
    crc = crc32(crc, reinterpret_cast<const Bytef*>(part.data()), static_cast<uInt>(part.size()));
  }
  OFSDP_REJECT_IF(crc != member.crc, "{}: member '{}': its checksum is another", source.path(),
                  escaped(member.name));
  return {};
}

}  // namespace ofsdp::runtime
