// ByteSource reads a column's bytes from a file or from memory.
//
// Files are read with pread and never mapped: if a file shrinks under us, the caller gets an error
// and no SIGBUS, and the page cache does not count in this process's memory.
//
// Owns the file descriptor, but not the memory. `read` may be called from any thread. Returns
// kInput if a file cannot be opened, kFault if reading fails later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/posix_file.h"

namespace ofsdp::runtime {

class ByteSource {
 public:
  static Result<ByteSource> open(const std::string& path);
  static ByteSource memory(std::string path, std::span<const std::byte> bytes);

  // Fills `dst` from `offset`, or returns an error. Does not allocate on success.
  Status read(uint64_t offset, std::span<std::byte> dst) const;
  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  // REQUIRES: the source is memory.
  std::span<const std::byte> bytes() const { return {memory_, size_}; }

 private:
  Status read_file(uint64_t offset, std::span<std::byte> dst) const;

  std::string path_;
  uint64_t size_ = 0;
  UniqueFd fd_;
  const std::byte* memory_ = nullptr;
};

// Gzip files (RFC 1952; several members in a row count as one). These functions allocate and must
// not run in the training loop. If a stream is truncated, damaged or has another length, they
// return kInput with the file and the bytes expected and found.

// Returns true for gzip data, whatever the name: downloads often drop the ending. kInput if the
// name ends in .gz, and the data are something else.
Result<bool> is_gzip(const ByteSource& source);

// Returns an error if the file cannot inflate to `bytes`; called before the memory is allocated.
Status check_inflated_size(const ByteSource& source, size_t bytes);

// Inflates the first bytes into `dst` and returns how many: dst.size(), or fewer if the data end.
Result<size_t> inflate_prefix(const ByteSource& source, std::span<std::byte> dst);

// Inflates everything; the data must have exactly dst.size() bytes.
Status inflate_all(const ByteSource& source, std::span<std::byte> dst);
// Inflates everything, of any length: at most 1032 times the file's, by the format.
Result<std::string> inflate_text(const ByteSource& source);

// A .zip file's member. Supports only the subset that .npz files use: stored or deflated members
// with 64-bit sizes (APPNOTE.TXT 6.3, sections 4.3 and 4.5.3), no encryption, one disk. Every
// offset and length is checked against the file; errors are kInput with file and member.
struct ZipMember {
  std::string name;
  bool deflated = false;  // else stored
  uint64_t header = 0;    // the local header's offset
  uint64_t packed = 0;    // bytes in the file
  uint64_t bytes = 0;
  uint32_t crc = 0;
};

Result<std::vector<ZipMember>> zip_members(const ByteSource& source);

// Returns the offset at which the member's bytes begin.
Result<uint64_t> member_offset(const ByteSource& source, const ZipMember& member);

// Inflates the first bytes into `dst` and returns how many: dst.size(), or fewer if the member
// ends.
Result<size_t> inflate_member_prefix(const ByteSource& source, const ZipMember& member,
                                     std::span<std::byte> dst);
// Inflates the whole member and checks the checksum. REQUIRES: dst.size() == member.bytes.
Status inflate_member(const ByteSource& source, const ZipMember& member, std::span<std::byte> dst);

}  // namespace ofsdp::runtime
