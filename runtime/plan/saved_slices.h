// The part of a run that goes into a checkpoint: a rank's share of parameters and optimizer state,
// and its running statistics.
//
// A rank saves the share of what it holds that no other rank saves: its shard; where several ranks
// hold the same, an equal part of it. A local checkpoint has all that a rank holds, as it is.
//
// Ownership: SavedSlice is a value that refers to the plan. Threads: any. Errors: none.
#pragma once

#include "fsdp/checkpoint/manifest.h"
#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

// One slice of this rank's, and the place of its elements in memory.
struct SavedSlice {
  Slice slice;
  Shape shape;         // of the whole tensor
  int parameter = -1;  // index in Graph::parameters
  int unit = -1;
  int state = -1;                              // -1: the parameters, else a state of the optimizer
  StateForm form = StateForm::kFloat32;        // of that state
  int64_t at = 0;                              // elements from the start of what the rank holds
  const KeptPlan::Entry* statistic = nullptr;  // running statistics; `unit` is -1
};

std::vector<SavedSlice> saved_slices(const RunPlan& plan, const Graph& graph, int rank,
                                     CheckpointType type);
// The bytes of a copy of them, and of one.
size_t staged_bytes(const std::vector<SavedSlice>& slices);
size_t staged_bytes(const SavedSlice& slice);
// The bytes of the room where the writer decodes states of fewer bits: none without any.
size_t decoding_bytes(const std::vector<SavedSlice>& slices);

// Every state of every trained parameter.
std::vector<StateTensor> state_tensors(const RunPlan& plan, const Graph& graph);
// The same, or nothing where every parameter has every state, an element each.
std::vector<StateTensor> uneven_states(const RunPlan& plan, const Graph& graph);

// The optimizer's states in the order of a rank's memory.
std::vector<std::string> state_names(const RunPlan& plan);

}  // namespace ofsdp::runtime
