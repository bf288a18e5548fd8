// What of a run goes into a checkpoint, and back: a rank's share of parameters and optimizer state,
// and its running statistics.
//
// A rank saves the share of what it holds that no other rank saves: its shard; where several ranks
// hold the same, an equal part of it. A local checkpoint has all that a rank holds, as it lies.
// Loading asks the reader for the elements that this rank holds, whoever saved them.
//
// Ownership: SavedSlice is a value; pointers are into the rank's memory. Threads: one. Errors: the
// reader's; kInput from check_resumable naming what differs.
#pragma once

#include "fsdp/checkpoint/checkpoint_reader.h"
#include "fsdp/checkpoint/shard_file.h"
#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

class RunState;

// One slice of this rank's, and where its elements are in memory.
struct SavedSlice {
  Slice slice;
  Shape shape;            // of the whole tensor
  int parameter = -1;     // index in Graph::parameters
  int unit = -1;          // or -1: running statistics,
  size_t kept_entry = 0;  // of this entry of the KeptPlan
  int state = -1;         // -1: the parameters, else which state of the optimizer
  int64_t at = 0;         // elements behind the start of what the rank holds
};

std::vector<SavedSlice> saved_slices(const RunPlan& plan, const Graph& graph, int rank,
                                     CheckpointType type);
// What a copy of them takes.
size_t staged_bytes(const std::vector<SavedSlice>& slices);

// All of the manifest that is the same for every save of a run.
Manifest describe_run(const Options& options, const RunPlan& plan, const ModelSetup& setup);

// Whether this run can go on from that checkpoint: the same graph, trained set and optimizer.
Status check_resumable(const Manifest& manifest, const Options& options, const ModelSetup& setup,
                       const std::vector<std::string>& states);

Status load_state(CheckpointReader& reader, const RunPlan& plan, RunState& state, int rank);

}  // namespace ofsdp::runtime
