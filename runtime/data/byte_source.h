// ByteSource: the bytes of a column, in a file, or in memory that holds an inflated one.
//
// Files are read by pread, never mapped: a file that shrinks under us is an error and no SIGBUS,
// and the page cache stays the kernel's (it would count in this process's memory if it were
// mapped).
//
// Ownership: a file's descriptor is owned; memory is not. Threads: `read` from any thread.
// Errors: kInput when a file cannot be opened, kFault when it later cannot be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/base/posix_file.h"

namespace ofsdp::runtime {

class ByteSource {
 public:
  static Result<ByteSource> open(const std::string& path);
  static ByteSource memory(std::string path, std::span<const std::byte> bytes);

  // All of `dst` from `offset`, or an error; does not allocate when it succeeds.
  Status read(uint64_t offset, std::span<std::byte> dst) const;
  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }

 private:
  Status read_file(uint64_t offset, std::span<std::byte> dst) const;

  std::string path_;
  uint64_t size_ = 0;
  UniqueFd fd_;
  const std::byte* memory_ = nullptr;
};

}  // namespace ofsdp::runtime
