// CheckpointStore: the folder of a run's checkpoints, for the one run that writes there.
//
//     DIR/.lock                       held while a run writes here
//     DIR/.step-00000120.TOKEN.tmp/   a save under way, or one that a killed run left
//     DIR/step-00000100/              complete: it has a manifest.json
//     DIR/best                        symbolic link to the checkpoint with the best evaluation
//     DIR/bad-step-00000080/          one that --resume latest found harmed and passed over
//
// To save, every rank writes files and a part of the manifest (`write_part`) into the temporary
// folder. After all ranks have done so, rank 0 must call `commit`, which writes the manifest last,
// syncs every file, renames the folder in one step, and only then removes older checkpoints, but
// never the last good one.
//
// Calls must not overlap; `commit` may run on another thread than `open`.
#pragma once

#include "fsdp/checkpoint/disk.h"
#include "fsdp/checkpoint/manifest.h"

namespace ofsdp::fsdp {

std::string checkpoint_name(int64_t step);  // "step-00000120"

// Returns the names of complete checkpoints in a folder, the latest first. Returns kFault if the
// folder cannot be listed.
Result<std::vector<std::string>> complete_checkpoints(const std::string& dir);

// Returns the temporary folder of a save.
std::string save_folder(const std::string& dir, int64_t step, const std::string& token);
// Writes a rank's part of the manifest.
Status write_part(const std::string& folder, int rank, const std::vector<CheckpointFile>& files);

class CheckpointStore {
 public:
  // Makes the folder if it is absent, takes the lock, and removes temporary folders that killed
  // runs left there; does not touch names of another form. Returns kInput if the folder cannot be
  // made or locked, kFault if a manifest cannot be read.
  static Result<CheckpointStore> open(const std::string& dir, const Retention& retention);

  // Joins the parts of all ranks. `manifest` has everything except files and sequence. Returns
  // kFault with the path if that fails.
  Status commit(const std::string& folder, Manifest manifest);
  // Returns the name of the newest checkpoint, or "".
  std::string newest() const { return entries_.empty() ? "" : entries_.back().name; }
  // Renames a harmed checkpoint, so that it is not used again.
  void set_aside(const std::string& name);
  // Returns true if the evaluation is better than all in the folder.
  bool is_best(const SavedEvaluation& evaluation) const;

 private:
  struct Entry {
    std::string name;
    int64_t sequence = 0;
    std::optional<SavedEvaluation> evaluation;
  };

  Status gather_parts(const std::string& folder, Manifest& manifest) const;
  bool better(const SavedEvaluation& a, const SavedEvaluation& b) const;
  const Entry* best() const;
  Status link_best() const;
  Status remove_old();

  std::string dir_;
  Retention retention_;
  LockedFile lock_;
  std::vector<Entry> entries_;  // by sequence
};

}  // namespace ofsdp::fsdp
