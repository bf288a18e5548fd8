// Disk operations of checkpoints beyond reading and writing bytes (kernels/base/posix_file.h): new
// files and folders, names that change in one step, a lock that the kernel releases.
//
// Ownership: LockedFile owns its descriptor. Threads: any. Errors: kFault naming the path and what
// the system said; kInput from lock_file when another process has the lock.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/posix_file.h"

namespace ofsdp::fsdp {

Result<OpenFile> create_file(const std::string& path);  // made when it is not there; keeps bytes
Status resize_file(const OpenFile& file, int64_t bytes);
Status start_writeback(const OpenFile& file, int64_t offset, int64_t bytes);  // does not wait
Status make_folder(const std::string& path);                                  // may be there
Status make_folders(const std::string& path);                                 // with its parents
// `from` gets the name `to`, whatever had it; a folder that was there takes `from`'s name. Where
// the file system cannot exchange names (NFS, CIFS), that folder is called `aside` meanwhile: who
// finds it there after a kill gives it its name back.
Status take_name(const std::string& from, const std::string& to, const std::string& aside = {});
Status write_whole_file(const std::string& path, const std::string& bytes);  // synced
Result<std::string> read_whole_file(const std::string& path, int64_t most_bytes);
Status remove_all(const std::string& path);
Result<std::vector<std::string>> names_in(const std::string& folder);  // sorted; absent: none
bool is_folder(const std::string& path);
bool is_file(const std::string& path);
// Whether the file system says that there is no such name; any other answer is no.
bool is_absent(const std::string& path);
std::string absolute_path(const std::string& path);

// Holds the lock until it is destroyed or the process ends, however it ends. Waits a little for a
// process that is about to end.
class LockedFile {
 public:
  static Result<LockedFile> lock(const std::string& path);

 private:
  OpenFile file_;
};

}  // namespace ofsdp::fsdp
