// RunFolder: the folder that keeps one training run of the command line.
//
//     runs/2026-11-29-mnist/
//       command.txt    `cd DIR && COMMAND`, for a shell: the command that made the folder
//       config.yaml    the effective configuration, for --config
//       metrics.jsonl  unless --metrics names another file
//       log.txt        the lines of the screen, without bar and colours
//       checkpoints/   unless --checkpoint-dir names another folder
//       model.onnx     the trained file, unless --output names another; `model/` for training
//                      artifacts, adapter.safetensors for adapters that cannot be merged
//       .run           the launcher's id of the run, by which a restart finds the folder
//
// Rank 0 makes the folder; the call of mkdir decides who gets a name. The other ranks learn the
// path and write nothing but their part of checkpoints and trained file. A folder whose run has not
// begun to train is removed with the object: `keep` says that it has.
//
// `open` is collective. Errors: kInput with --run-dir if the folder cannot be made, or a rank does
// not see it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

// The adapter of a model that it cannot be merged into.
inline constexpr const char* kRunAdapter = "adapter.safetensors";

// A name of the form "2026-11-29-mnist".
std::string run_name(const Options& options, const ModelOrigin& origin);

// Returns the folder of the run that `resume` continues, or the one that would be made now; empty:
// none.
std::string expected_run_folder(const Options& options, const ModelOrigin& origin);

// Returns the folder below `parent` that a run with this id has made; empty if there is none.
std::string find_run_folder(const std::string& parent, const std::string& run_id);

// Returns where the run's checkpoints go: --checkpoint-dir or a place in the folder.
std::string checkpoint_folder(const Options& options, const std::string& run_folder);

// A command.txt.
struct RunCommand {
  std::string folder;              // where it was started, absolute
  std::vector<std::string> words;  // with the program
};

// Reads the command of a run's folder. Returns kInput if there is none.
Result<RunCommand> read_run_command(const std::string& run_folder);

class RunFolder {
 public:
  // A run without a folder.
  RunFolder() = default;
  RunFolder(RunFolder&& other) noexcept;
  RunFolder& operator=(RunFolder&& other) noexcept;
  ~RunFolder();

  // Makes the folder that the options ask for, or takes that of the run which `resume` or a restart
  // continues. `run_id`: the launcher's, unique; empty: none.
  static Result<RunFolder> open(const Options& options, const ModelOrigin& origin,
                                Communicator& communicator, const std::string& run_id);

  const std::string& path() const { return path_; }  // empty: none
  // Gives the files that the options leave open their places in the folder.
  void fill(Options& options, const ModelOrigin& origin) const;

  // Rank 0: writes command.txt, unless it is there or `command` is empty, writes config.yaml and
  // opens log.txt.
  Status begin(const std::vector<std::string>& command, const std::string& configuration);
  // Adds to log.txt; nothing happens without one.
  void log(std::string_view text) const;
  int log_descriptor() const { return log_.get(); }  // -1: none
  void keep() { new_ = false; }

 private:
  Status make(const std::string& parent, const std::string& name, const std::string& run_id);
  void remove();

  std::string path_;
  std::string parent_;  // was made too; else empty
  bool new_ = false;    // made here, and not yet kept
  UniqueFd log_;        // rank 0
};

}  // namespace ofsdp::runtime
