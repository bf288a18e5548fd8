// CheckpointStore: the folder of a run's checkpoints, for its one writer.
//
//     DIR/.lock                       held while a run writes here
//     DIR/.step-00000120.TOKEN.tmp/   a save under way, or one that a killed run left
//     DIR/step-00000100/              complete: it has a manifest.json
//     DIR/best                        symbolic link to the checkpoint of the best evaluation
//     DIR/bad-step-00000080/          one that --resume latest found harmed and passed over
//
// A save: every rank writes its files and its part of the manifest (`write_part`) into the
// temporary folder. After all ranks have done so, rank 0 calls `commit`. It writes the manifest
// last, syncs every file, renames the folder in one step, and only then removes older checkpoints,
// never the last good one.
//
// Owner: the session; the store holds the lock. Thread: one at a time; `commit` may run on another
// thread than `open`. Errors: kInput from `open`, and kFault where a manifest cannot be read;
// afterwards kFault, which names the path.
#pragma once

#include "fsdp/checkpoint/disk.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/retention.h"

namespace ofsdp::fsdp {

std::string checkpoint_name(int64_t step);  // "step-00000120"

// Complete checkpoints of a folder, the latest first. Names, no paths. Errors: kFault when the
// folder cannot be listed.
Result<std::vector<std::string>> complete_checkpoints(const std::string& dir);

// A rank's part in a save of several ranks.
std::string save_folder(const std::string& dir, int64_t step, const std::string& token);
Status write_part(const std::string& folder, int rank, const std::vector<CheckpointFile>& files);

class CheckpointStore {
 public:
  // Makes the folder when it is not there, takes its lock, removes the temporaries that killed runs
  // of this program left there; names of another form are somebody else's.
  static Result<CheckpointStore> open(const std::string& dir, const Retention& retention);

  // Puts the parts of all ranks together. `manifest` has everything but files and sequence.
  Status commit(const std::string& folder, Manifest manifest);
  // The newest checkpoint there, or "".
  std::string newest() const { return entries_.empty() ? "" : entries_.back().name; }
  // A harmed checkpoint keeps its bytes under another name.
  void set_aside(const std::string& name);
  // Whether the evaluation is better than that of every checkpoint so far.
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
