// RunFiles: every file that a command reads or writes, with the flag that names it. `check` refuses
// an output that is an input, and two outputs in one file, before any is opened for writing.
//
// Files are compared by device and inode, so that links, mounts and different spellings of a path
// do not hide that two paths are one file. If a path has no file yet, the device and inode of the
// deepest folder that exists are compared, and the part of the path below it. Devices and pipes are
// ignored, since writing into them replaces nothing.
//
//   inputs    model, its external data, files of options, --data and --eval-data with every column,
//             --teacher with its external data, --lora-from, --resume, plug-ins, hostfile,
//             topology, the file of the secret; for `export` the checkpoint and its model
//   outputs   --output with its external data, --adapter, --metrics, --report, --trace, --log,
//             --checkpoint-dir, the folder of the run, `--html`, `doctor --picture`, the files
//             that `config`, `prepare`, `export`, `predict` and `make-training` write
//
// A folder that gains files (--checkpoint-dir, --log except csv) may contain inputs, except data
// columns. A folder that is replaced (--output of training artifacts) must contain none. Files that
// cannot be read are ignored here; their readers report them. It is enough if one process of a run
// calls check_run_files.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

// Returns kInput if the name of an ONNX file says that it is another kind of file.
Status check_kind_of_output(const std::string& path);

// Returns kInput, naming both flags and the path, if two files of the command clash. Called before
// any output is opened. `origin`: facts about the model's files (runtime/options.h).
Status check_run_files(const Options& options, const ModelOrigin& origin);

// Returns kInput if a file of --metrics, --log, --trace or --report cannot be made. Makes none.
Status check_log_targets(const Options& options);

class RunFiles {
 public:
  // `role` names the file in messages, such as "the model" or "a file of --data"; `flag` is the
  // option. Empty paths are ignored. After the last call, `check` compares all.
  void reads(const std::string& role, const std::string& path);
  // A folder whose list of files is read (--data FOLDER). The files are added by `reads`.
  void reads_folder(const std::string& role, const std::string& path);
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
