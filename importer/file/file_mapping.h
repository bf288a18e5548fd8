// FileMapping: the bytes of an open file that is not empty, mapped for reading while they are
// walked once. Weights are read by pread later: a file that is cut short under a mapping kills the
// process, pread returns an error.
//
// Ownership: the mapping is the object's and outlives the descriptor. Threads: any.
// Errors: kInput naming the file.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

#include "kernels/base/posix_file.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {

class FileMapping {
 public:
  static Result<FileMapping> make(const OpenFile& file) {
    const auto bytes = static_cast<size_t>(file.bytes);
    void* data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
    OFSDP_REJECT_IF(data == MAP_FAILED, "{}: cannot be mapped: {}", file.path,
                    std::strerror(errno));
    return FileMapping({static_cast<const std::byte*>(data), bytes});
  }

  FileMapping(FileMapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  FileMapping& operator=(FileMapping&&) = delete;
  ~FileMapping() {
    if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit FileMapping(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace ofsdp::importer
