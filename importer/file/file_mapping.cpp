#include "importer/file/file_mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace ofsdp::importer {

Result<FileMapping> FileMapping::make(const OpenFile& file) {
  const auto bytes = static_cast<size_t>(file.bytes);
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
  if (data == MAP_FAILED) {
    return input_error("{}: cannot be mapped: {}", file.path, std::strerror(errno));
  }
  return FileMapping({static_cast<const std::byte*>(data), bytes});
}

FileMapping::~FileMapping() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace ofsdp::importer
