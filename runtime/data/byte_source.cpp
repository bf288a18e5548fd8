#include "runtime/data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/base/text.h"

namespace ofsdp::runtime {

Result<ByteSource> ByteSource::open(const std::string& path) {
  ByteSource source;
  source.path_ = path;
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  source.fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!source.fd_.valid() || fstat(source.fd_.get(), &info) != 0) {
    return input_error("{}: cannot be opened: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return input_error("{}: expected a file, found something else", path);
  source.size_ = static_cast<uint64_t>(info.st_size);
  return source;
}

ByteSource ByteSource::memory(std::string path, std::span<const std::byte> bytes) {
  ByteSource source;
  source.path_ = std::move(path);
  source.size_ = bytes.size();
  source.memory_ = bytes.data();
  return source;
}

Status ByteSource::read(uint64_t offset, std::span<std::byte> dst) const {
  if (fd_.valid()) return read_file(offset, dst);
  if (dst.empty()) return ok_status();
  OFSDP_CHECK(offset + dst.size() <= size_, "{}: {} + {} of {} bytes", path_, offset, dst.size(),
              size_);
  std::memcpy(dst.data(), memory_ + offset, dst.size());
  return ok_status();
}

Status ByteSource::read_file(uint64_t offset, std::span<std::byte> dst) const {
  while (!dst.empty()) {
    const ssize_t got = pread(fd_.get(), dst.data(), dst.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fault("{}: reading at byte {}: {}", path_, offset, std::strerror(errno));
    if (got == 0) {
      return fault("{}: the file became shorter during the run: expected {} bytes, found {}", path_,
                   size_, offset);
    }
    dst = dst.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return ok_status();
}

namespace {

constexpr size_t kBlock = 64 * 1024;
constexpr size_t kMaxRatio = 1032;    // deflate shrinks no better
constexpr int kGzipWindow = 15 + 16;  // tells zlib to expect a gzip header and trailer

class Inflater {
 public:
  // `expected` appears in messages; none: the length is unknown.
  Inflater(const ByteSource& source, std::optional<size_t> expected)
      : source_(source), expected_(expected), input_(kBlock) {}
  Inflater(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  Status start() {
    if (inflateInit2(&stream_, kGzipWindow) == Z_OK) return ok_status();
    return fault("{}: zlib has no memory", source_.path());
  }

  // Fills `dst` and returns how many bytes it wrote; fewer than dst.size() if the data end.
  Result<size_t> read(std::span<std::byte> dst) {
    size_t total = 0;
    while (total < dst.size() && !ended_) {
      OFSDP_RETURN_IF_ERROR(refill());
      if (ended_) break;
      const size_t wanted = std::min(dst.size() - total, size_t{1} << 30);
      stream_.next_out = reinterpret_cast<Bytef*>(dst.data() + total);
      stream_.avail_out = static_cast<uInt>(wanted);
      const int code = inflate(&stream_, Z_NO_FLUSH);
      total += wanted - stream_.avail_out;
      produced_ += wanted - stream_.avail_out;
      OFSDP_RETURN_IF_ERROR(judge(code));
    }
    return total;
  }

  size_t produced() const { return produced_; }

 private:
  Status refill() {
    if (stream_.avail_in > 0) return ok_status();
    const size_t rest = source_.size() - offset_;
    if (rest == 0 && between_members_) {
      ended_ = true;
      return ok_status();
    }
    if (rest == 0) {
      return input_error("{}: truncated gzip data: {}", source_.path(), lengths());
    }
    const size_t count = std::min(rest, kBlock);
    OFSDP_RETURN_IF_ERROR(source_.read(offset_, {input_.data(), count}));
    offset_ += count;
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(count);
    return ok_status();
  }

  Status judge(int code) {
    between_members_ = code == Z_STREAM_END;
    if (between_members_) inflateReset(&stream_);
    if (code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR) return ok_status();
    return input_error("{}: corrupted gzip data: {} ({})", source_.path(), lengths(),
                       stream_.msg != nullptr ? stream_.msg : "no more is known");
  }

  std::string lengths() const {
    return expected_
               ? format_text("expected {} bytes after inflating, found {}", *expected_, produced_)
               : format_text("expected its end after inflating, found {} bytes", produced_);
  }

  const ByteSource& source_;
  const std::optional<size_t> expected_;
  std::vector<std::byte> input_;
  z_stream stream_{};
  size_t offset_ = 0;
  size_t produced_ = 0;
  bool between_members_ = false;
  bool ended_ = false;
};

}  // namespace

Result<bool> is_gzip(const ByteSource& source) {
  std::array<std::byte, 2> magic{};
  if (source.size() >= magic.size()) OFSDP_RETURN_IF_ERROR(source.read(0, magic));
  const bool gzip = magic[0] == std::byte{0x1f} && magic[1] == std::byte{0x8b};
  if (!gzip && (source.path().ends_with(".gz") || source.path().ends_with(".GZ"))) {
    return input_error("{}: expected gzip data (first bytes 1f 8b), found {:02x} {:02x}",
                       source.path(), static_cast<unsigned>(magic[0]),
                       static_cast<unsigned>(magic[1]));
  }
  return gzip;
}

Status check_inflated_size(const ByteSource& source, size_t bytes) {
  if (bytes / kMaxRatio <= source.size()) return ok_status();
  return input_error("{}: expected {} bytes after inflating, more than a file of {} can hold",
                     source.path(), bytes, source.size());
}

Result<size_t> inflate_prefix(const ByteSource& source, std::span<std::byte> dst) {
  Inflater inflater(source, dst.size());
  OFSDP_RETURN_IF_ERROR(inflater.start());
  Result<size_t> found = inflater.read(dst);
  // Damage after a whole header is left to inflate_all, which knows the expected length.
  if (!found.ok() && inflater.produced() > 0) return inflater.produced();
  return found;
}

Status inflate_all(const ByteSource& source, std::span<std::byte> dst) {
  Inflater inflater(source, dst.size());
  OFSDP_RETURN_IF_ERROR(inflater.start());
  OFSDP_ASSIGN_OR_RETURN(size_t found, inflater.read(dst));
  // Reading on makes zlib compare the checksum after the data, and finds surplus bytes.
  std::vector<std::byte> rest(kBlock);
  for (size_t more = 1; more > 0; found += more) {
    OFSDP_ASSIGN_OR_RETURN(more, inflater.read(rest));
  }
  if (found == dst.size()) return ok_status();
  return input_error("{}: expected {} bytes after inflating, found {}", source.path(), dst.size(),
                     found);
}

Result<std::string> inflate_text(const ByteSource& source) {
  Inflater inflater(source, std::nullopt);
  OFSDP_RETURN_IF_ERROR(inflater.start());
  std::string text;
  size_t filled = 0;
  while (filled == text.size()) {
    text.resize(std::max(2 * text.size(), kBlock));
    OFSDP_ASSIGN_OR_RETURN(const size_t more,
                           inflater.read(std::as_writable_bytes(std::span(text).subspan(filled))));
    filled += more;
  }
  text.resize(filled);
  return text;
}

namespace {

constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint32_t kEntrySignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr uint64_t kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr uint64_t kEntryBytes = 46, kLocalBytes = 30;
constexpr uint64_t kMaxComment = 0xffff;
constexpr uint64_t kMaxDirectory = uint64_t{64} << 20;
constexpr size_t kZipBlock = 64 * 1024;
constexpr uint64_t kMaxDeflate = 1032;  // deflate shrinks no better
constexpr int kRawWindow = -15;         // tells zlib to expect no header and no trailer

// Reads little-endian numbers from a record.
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

// Searches backwards, since a comment may follow the directory.
Result<Directory> find_directory(const ByteSource& source) {
  const uint64_t tail = std::min(source.size(), kEndBytes + kMaxComment);
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

// If a 32-bit field is full, the 64-bit value is in an extra field, in this order.
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
  OFSDP_REJECT_IF(member.packed > source.size() || member.bytes / kMaxDeflate > member.packed,
                  "{}: expected {} bytes of {}, more than the file can hold", subject, member.bytes,
                  member.packed);
  return {};
}

// Inflates the member until `dst` is full or the stream ends.
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
    Bytef none = 0;  // the stream's end may follow the last byte
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
  OFSDP_REJECT_IF(directory.bytes > kMaxDirectory,
                  "{}: expected a directory of at most {} bytes, "
                  "found {}",
                  source.path(), kMaxDirectory, directory.bytes);
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
