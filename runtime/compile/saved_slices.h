// SavedSlice: consecutive elements of one tensor (a parameter, an optimizer state or a running
// statistic) that this rank writes into a checkpoint.
//
// In a sharded or full checkpoint every element is saved by one rank: each rank saves its shard; if
// several ranks hold the same shard, each saves an equal part of it. In a local checkpoint each
// rank saves everything that it holds.
#pragma once

#include "fsdp/checkpoint/manifest.h"
#include "runtime/compile/compile.h"

namespace ofsdp::runtime {

// `statistic` points into the plan.
struct SavedSlice {
  Slice slice;
  Shape shape;         // the whole tensor
  int parameter = -1;  // index in Graph::parameters
  int unit = -1;
  int state = -1;                                // index of the optimizer state; -1: a parameter
  StateForm form = StateForm::kFloat32;          // the state's storage
  int64_t at = 0;                                // first element, counted in the rank's array
  const KeptValues::Entry* statistic = nullptr;  // running statistics; `unit` is -1
};

std::vector<SavedSlice> saved_slices(const CompiledRun& plan, const Graph& graph, int rank,
                                     CheckpointType type);
// Return the bytes of the copy that an asynchronous save makes.
size_t staged_bytes(const std::vector<SavedSlice>& slices);
size_t staged_bytes(const SavedSlice& slice);
// Returns the bytes of the buffer in which the writer converts states stored in few bits to
// float32; 0 if there are none.
size_t decoding_bytes(const std::vector<SavedSlice>& slices);

// Returns the names and shapes of all states of all trained parameters.
std::vector<fsdp::StateTensor> state_tensors(const CompiledRun& plan, const Graph& graph);
// The same; empty if every parameter has every state, elementwise.
std::vector<fsdp::StateTensor> uneven_states(const CompiledRun& plan, const Graph& graph);

}  // namespace ofsdp::runtime
