// FileMapping: the bytes of an open file that is not empty, mapped for reading while they are
// walked once. Weights are read by pread later: a file that is cut short under a mapping kills the
// process, pread returns an error.
//
// Ownership: the mapping is the object's and outlives the descriptor. Threads: any.
// Errors: kInput naming the file.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/base/posix_file.h"

namespace ofsdp::importer {

class FileMapping {
 public:
  static Result<FileMapping> make(const OpenFile& file);
  FileMapping(FileMapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  FileMapping& operator=(FileMapping&&) = delete;
  ~FileMapping();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit FileMapping(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace ofsdp::importer
