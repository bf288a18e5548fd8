// SavedSlice: elements that one rank writes into a checkpoint: a share of parameters or optimizer
// states, or running statistics.
//
// Over all ranks every element is saved once: a rank saves the shard, or an equal part if several
// ranks hold the same shard. A local checkpoint has everything that the rank holds.
#pragma once

#include "fsdp/checkpoint/manifest.h"
#include "runtime/compile/compile.h"

namespace ofsdp::runtime {

// Refers to the plan.
struct SavedSlice {
  Slice slice;
  Shape shape;         // the whole tensor's
  int parameter = -1;  // index in Graph::parameters
  int unit = -1;
  int state = -1;                                // optimizer state; -1: parameters
  StateForm form = StateForm::kFloat32;          // the state's storage
  int64_t at = 0;                                // index in the rank's array
  const KeptValues::Entry* statistic = nullptr;  // running statistics; `unit` is -1
};

std::vector<SavedSlice> saved_slices(const CompiledRun& plan, const Graph& graph, int rank,
                                     CheckpointType type);
// Returns the bytes of a copy, as an asynchronous save needs it.
size_t staged_bytes(const std::vector<SavedSlice>& slices);
size_t staged_bytes(const SavedSlice& slice);
// Returns the bytes in which the writer decodes states of fewer than 32 bits; 0 if there are none.
size_t decoding_bytes(const std::vector<SavedSlice>& slices);

// Returns every state of every trained parameter.
std::vector<StateTensor> state_tensors(const CompiledRun& plan, const Graph& graph);
// The same; empty if every parameter has every state, elementwise.
std::vector<StateTensor> uneven_states(const CompiledRun& plan, const Graph& graph);

}  // namespace ofsdp::runtime
