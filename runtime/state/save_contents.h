// SaveContents: what this rank writes in a save, as a job for the Saver: its shard files and, of a
// full checkpoint, its elements of the model file (rank 0 also all that does not change).
//
// `sources` says where the elements of each slice are after `step`: in the training state, which
// the job then reads while nothing changes it, or in the staged copy, which it makes. One save at a
// time.
//
// Ownership: borrows all; a job points into it. Threads: one; jobs run on the Saver's. Errors:
// kFault from make when the model file cannot be read any more, from sources when a weight is NaN.
#pragma once

#include <memory>
#include <optional>

#include "importer/write/model_copy.h"
#include "runtime/plan/saved_slices.h"
#include "runtime/state/rank_state.h"
#include "runtime/state/saver.h"

namespace ofsdp::runtime {

class SaveContents {
 public:
  static Result<std::unique_ptr<SaveContents>> make(CheckpointType type, RankState& state);

  Result<std::vector<SliceSource>> sources(bool staged, int64_t step);
  WriteJob job(const std::string& folder, const std::string& save,
               const std::vector<SliceSource>& sources) const;

 private:
  SaveContents(CheckpointType type, RankState& state)
      : state_(state),
        slices_(saved_slices(state.plan(), state.setup().graph, state.rank(), type)),
        decoding_(decoding_bytes(slices_)) {}

  Status plan_copy();
  int initializer_of(const SavedSlice& slice) const;
  const float* live(const SavedSlice& slice);
  StoredState live_state(const SavedSlice& slice) const;
  Result<std::vector<SliceSource>> staged(int64_t step);
  void add_model_files(const std::vector<SliceSource>& sources, WriteJob& job) const;

  RankState& state_;
  const std::vector<SavedSlice> slices_;
  const size_t decoding_;  // bytes of the staging that the writer decodes in; the copy follows
  std::optional<ModelCopy> copy_;  // of a full checkpoint
};

}  // namespace ofsdp::runtime
