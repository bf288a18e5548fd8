#include "runtime/data/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

namespace ofsdp::runtime {
namespace {

constexpr size_t kBlock = 64 * 1024;
constexpr size_t kMostRatio = 1032;   // what deflate can shrink at best
constexpr int kGzipWindow = 15 + 16;  // zlib's way to say: gzip header and trailer

class Inflater {
 public:
  // `expected` is for messages.
  Inflater(const ByteSource& source, size_t expected)
      : source_(source), expected_(expected), input_(kBlock) {}
  Inflater(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  Status start() {
    if (inflateInit2(&stream_, kGzipWindow) == Z_OK) return ok_status();
    return fault("{}: zlib has no memory", source_.path());
  }

  // Fills `dst` as far as there is data. Fewer bytes than asked for: the end, in order.
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
      return input_error("{}: truncated gzip data: expected {} bytes after inflating, found {}",
                         source_.path(), expected_, produced_);
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
    return input_error("{}: corrupted gzip data: expected {} bytes after inflating, found {} ({})",
                       source_.path(), expected_, produced_,
                       stream_.msg != nullptr ? stream_.msg : "no more is known");
  }

  const ByteSource& source_;
  const size_t expected_;
  std::vector<std::byte> input_;
  z_stream stream_{};
  size_t offset_ = 0;
  size_t produced_ = 0;
  bool between_members_ = false;
  bool ended_ = false;
};

}  // namespace

bool starts_like_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

Status check_inflated_size(const ByteSource& source, size_t bytes) {
  if (bytes / kMostRatio <= source.size()) return ok_status();
  return input_error("{}: expected {} bytes after inflating, more than a file of {} can hold",
                     source.path(), bytes, source.size());
}

Result<size_t> inflate_prefix(const ByteSource& source, std::span<std::byte> dst) {
  Inflater inflater(source, dst.size());
  OFSDP_RETURN_IF_ERROR(inflater.start());
  Result<size_t> found = inflater.read(dst);
  // inflate_all reports damage after a whole header: only it knows how much there should be.
  if (!found.ok() && inflater.produced() > 0) return inflater.produced();
  return found;
}

Status inflate_all(const ByteSource& source, std::span<std::byte> dst) {
  Inflater inflater(source, dst.size());
  OFSDP_RETURN_IF_ERROR(inflater.start());
  OFSDP_ASSIGN_OR_RETURN(size_t found, inflater.read(dst));
  // Reading on makes zlib compare the checksum after the data, and counts surplus bytes.
  std::vector<std::byte> rest(kBlock);
  for (size_t more = 1; more > 0; found += more) {
    OFSDP_ASSIGN_OR_RETURN(more, inflater.read(rest));
  }
  if (found == dst.size()) return ok_status();
  return input_error("{}: expected {} bytes after inflating, found {}", source.path(), dst.size(),
                     found);
}

}  // namespace ofsdp::runtime
