// File descriptors with an owner, and reads, writes and copies that are whole or an error.
//
// Offsets and counts are bytes. All calls name their offset (pread, pwrite), so descriptors have no
// position that threads could disturb.
//
// A UniqueFd closes its descriptor. A failure to open for reading is an input error if the name or
// its rights are to blame (the user gave it), and a fault if the system is (EIO, ESTALE, EMFILE,
// ...); all later failures are faults.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/status.h"

namespace ofsdp::base {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

struct OpenFile {
  std::string path;
  UniqueFd fd;
  int64_t bytes = 0;  // when it was opened
  dev_t device = 0;   // with inode: identifies the file whatever its path
  ino_t inode = 0;
};

enum class Symlinks { kFollow, kRefuse };

// Opens a regular file; refuses folders, pipes and devices without blocking on them.
Result<OpenFile> open_for_reading(const std::string& path, Symlinks symlinks = Symlinks::kFollow);
Result<OpenFile> open_for_writing(const std::string& path);  // one that exists

// Returns whether `path` exists and is that file, under whatever name.
bool is_same_file(const std::string& path, const OpenFile& file);

Status read_exactly(const OpenFile& file, int64_t offset, std::span<std::byte> dst);
Status write_exactly(const OpenFile& file, int64_t offset, std::span<const std::byte> src);
Status copy_bytes(const OpenFile& src, int64_t src_offset, const OpenFile& dst, int64_t dst_offset,
                  int64_t bytes);
// Exchanges the names of folders `a` and `b`; if the file system knows no exchange (NFS, CIFS), by
// three renames through `aside` (empty: it fails). Returns whether they were exchanged; else errno
// says why not.
bool exchange_names(const std::string& a, const std::string& b, const std::string& aside);
// Makes a file without a name, for memory that processes share: no program can be run from it, and
// once the size is sealed nobody can truncate it while others use it. Returns -1 with errno.
int memory_file(const std::string& name);
void seal_size(int fd);
Status sync_file(const OpenFile& file);
Status sync_folder(const std::string& folder);

std::string folder_of(const std::string& path);    // "." if it names none
std::string filename_of(const std::string& path);  // the part after the last '/'
std::string join_path(const std::string& folder, const std::string& name);

}  // namespace ofsdp::base
