// Disk operations for checkpoints beyond reading and writing bytes (kernels/base/posix_file.h): new
// files and folders, renaming in one step, a lock that the kernel releases, a checksum.
//
// Errors are kFault with the path and the system's text, unless noted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/posix_file.h"

namespace ofsdp::fsdp {

// Creates a file, or opens it with its bytes if it exists.
Result<OpenFile> create_file(const std::string& path);
Status resize_file(const OpenFile& file, int64_t bytes);
Status start_writeback(const OpenFile& file, int64_t offset, int64_t bytes);  // does not wait
Status make_folder(const std::string& path);                                  // may exist
Status make_folders(const std::string& path);                                 // and the parents
// Renames `from` to `to`. A file there is replaced; a folder there gets the name `from` in
// exchange. If the file system cannot exchange names (NFS, CIFS), the folder has the name `aside`
// for a moment. A kill in that moment leaves it there, and the next user of `to` must rename it
// back. An empty `aside` makes such a file system an error.
Status take_name(const std::string& from, const std::string& to, const std::string& aside = {});
Status write_whole_file(const std::string& path, const std::string& bytes);  // synced
Result<std::string> read_whole_file(const std::string& path, int64_t max_bytes);
Status remove_all(const std::string& path);
// Returns the names in the folder, sorted; none if it is absent.
Result<std::vector<std::string>> list_folder(const std::string& folder);
bool is_folder(const std::string& path);
bool is_file(const std::string& path);
// Returns true only if the file system says that there is no such name.
bool is_absent(const std::string& path);
std::string absolute_path(const std::string& path);

// Holds a lock until it is destroyed or the process ends, however it ends.
class LockedFile {
 public:
  // Waits a few seconds if another process has the lock; then returns kInput.
  static Result<LockedFile> lock(const std::string& path);

 private:
  OpenFile file_;
};

// Returns the CRC-32C (Castagnoli) over `bytes`, by the processor's instruction (x86/, aarch64/).
// Follows RFC 3720, appendix B.4. crc32c(b, crc32c(a)) is the checksum of a followed by b.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace ofsdp::fsdp
