// Starting ranks again after a failure: where they go on from, as the launcher sees it
// (RestartPoint), and what a rank then does otherwise (after_restart).
//
// The launcher says so to its ranks in the environment (OFSDP_RESTART, OFSDP_FIRST_WORLD). With
// fewer ranks than at first the batch of a rank becomes the largest, not above the one asked for,
// that divides the global batch, so that the planned memory still holds; more accumulation makes
// up for it.
//
// Ownership: values. Threads: one at a time, while nobody changes the environment. Errors: kInput
// when the global batch is no multiple of the ranks. A folder that cannot be read has no
// checkpoints.
#pragma once

#include <cstdint>
#include <string>

#include "fsdp/comm/rank_identity.h"
#include "kernels/base/status.h"
#include "runtime/cli/launch/node_messages.h"
#include "runtime/options.h"

namespace ofsdp::cli {

// The latest checkpoint that this run itself has saved, or else the place where it was started.
// Checkpoints that were in the folder before do not count: a run that was started afresh next to
// old ones must not continue those.
class RestartPoint {
 public:
  // At the start of the run. `dir` empty: it saves nothing. `most`: restarts that are allowed.
  RestartPoint(const std::string& dir, int most);
  // Sets `next` to the attempt that follows one which ended so, and returns what is printed of it:
  // "restart 1 of 2: from the latest checkpoint in DIR". None: the run has ended.
  std::optional<std::string> start_again(const Outcome& ended, Assignment& next) const;

 private:
  struct Latest {
    std::string name;
    uint64_t file = 0;  // the number of its manifest: a checkpoint saved again is another file
    bool operator==(const Latest&) const = default;
  };
  Latest latest() const;
  std::string text(bool saved) const;

  std::string dir_;
  int most_;
  Latest before_;
};

// The options of this rank after a restart, or `options` themselves.
Result<Options> after_restart(Options options, int world, const EnvironmentLookup& lookup = {});

}  // namespace ofsdp::cli
