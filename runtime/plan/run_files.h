// RunFiles: every file that a command reads or writes, each by the flag that names it, compared
// before any of them is opened for writing. No output may be an input, and no two outputs one file.
//
// Files are compared by device and inode, so links, other spellings of a path and mounts are seen
// through; a path without a file by the deepest folder that is there and the rest. Devices and
// pipes are left out: writing into them replaces nothing.
//
//   inputs    model, its external data, files of options, --data and --eval-data with every column,
//             --teacher with its external data, --lora-from, --resume, plug-ins, hostfile,
//             topology, the file of the secret; of `export` the checkpoint and its model
//   outputs   --output with its external data, --adapter, --metrics, --trace, --log,
//             --checkpoint-dir, `plan --html`, `doctor --picture`, the files that `config`,
//             `export` and `make-training` write
//
// A folder that only gains files (--checkpoint-dir, --log tensorboard) may hold inputs, but is no
// folder of data. One that is replaced as a whole (--output of training artifacts) may hold none.
//
// One process of a run is enough. Errors: kInput naming both flags and the path. A file that cannot
// be read is no error here, since its reader says so.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

// Whether files of the options' command are apart.
Status check_run_files(const Options& options, const ModelOrigin& origin);

class RunFiles {
 public:
  // `role` says what the file is, as "the model" or "a file of --data".
  void reads(const std::string& role, const std::string& path);
  void reads_folder(const std::string& role, const std::string& path);  // as such
  void reads_all_in(const std::string& role, const std::string& path);
  void writes(const std::string& flag, const std::string& path);
  void adds_to_folder(const std::string& flag, const std::string& path);
  void replaces_folder(const std::string& flag, const std::string& path);

  bool any_output() const;

  Status check() const;

 private:
  enum class Use { kReads, kReadsFolder, kReadsAllIn, kWrites, kAddsTo, kReplaces };
  struct Entry {
    Use use = Use::kReads;
    std::string name;  // role or flag
    std::string path;
    std::string identity;
    std::string resolved;  // without links, absolute
  };

  void add(Use use, const std::string& name, const std::string& path);
  static bool clash(const Entry& output, const Entry& other);
  static bool is_output(const Entry& entry);
  static Status refusal(const Entry& output, const Entry& other);

  std::vector<Entry> entries_;
};

}  // namespace ofsdp::runtime
