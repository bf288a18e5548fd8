// Owned file descriptors, and reads, writes and copies that are complete or return an error.
//
// Offsets and counts are bytes. Calls pass their offset (pread, pwrite), so threads cannot disturb
// each other. Opening for reading returns an input error if the name or access rights are wrong,
// and a fault if the system failed (EIO, ESTALE, EMFILE, ...). All later failures are faults.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
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
  int64_t bytes = 0;  // when opened
  dev_t device = 0;   // with inode: identifies the file under any path
  ino_t inode = 0;
};

enum class Symlinks { kFollow, kRefuse };

// Opens a regular file; refuses folders, pipes and devices without blocking on them.
Result<OpenFile> open_for_reading(const std::string& path, Symlinks symlinks = Symlinks::kFollow);
Result<OpenFile> open_for_writing(const std::string& path);  // must exist

// Returns whether `path` names that same file.
bool is_same_file(const std::string& path, const OpenFile& file);

Status read_exactly(const OpenFile& file, int64_t offset, std::span<std::byte> dst);
Status write_exactly(const OpenFile& file, int64_t offset, std::span<const std::byte> src);
Status copy_bytes(const OpenFile& src, int64_t src_offset, const OpenFile& dst, int64_t dst_offset,
                  int64_t bytes);
// Exchanges the names of folders `a` and `b`. If the file system cannot (NFS, CIFS), renames three
// times through `aside`; fails if `aside` is empty. Returns false with errno on failure.
bool exchange_names(const std::string& a, const std::string& b, const std::string& aside);
// Returns a nameless file for memory that processes share, or -1 with errno. Nobody can run a
// program from it, or truncate it once seal_size has been called.
int memory_file(const std::string& name);
void seal_size(int fd);
Status sync_file(const OpenFile& file);
Status sync_folder(const std::string& folder);

std::string parent_folder(const std::string& path);  // "." if path has no folder
std::string base_filename(const std::string& path);  // after the last '/'
std::string join_path(const std::string& folder, const std::string& name);

// Writes all of `text` at the descriptor's position (log, pipe, terminal), across interrupting
// signals. Returns 0 or errno. Texts that several threads write may interleave.
[[nodiscard]] int write_text(int fd, std::string_view text);

}  // namespace ofsdp::base
