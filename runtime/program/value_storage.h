// The storage of values: those that share their bytes have one, which the memory plan places and
// operands point to.
//
// [Note: sums of gradients] Where several nodes contribute to a parameter's gradient (a tied
// embedding), each adds to the sum before it, in place where its operator may. Such a sum lies in
// the gradient's slot from its first part on, so it is neither kept a second time nor copied there:
// the slot is acquired before the node that writes the first part (schedule_reductions.cpp).
//
// Pure; threads: any.
#pragma once

#include <cstdint>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::runtime {

// For each value the one whose bytes it shows: itself, what it views, or the gradient of a
// parameter that it becomes.
std::vector<ValueId> storage_of(const Graph& graph);

// Whether a value has a place of its own outside of the arena, where peers read: gradients of
// parameters and joined rows.
std::vector<bool> has_own_place(const Graph& graph);

// How many inputs of a node show the bytes of `root`: one that reads them once may overwrite them.
int64_t reads_of(const Node& node, const std::vector<ValueId>& storage, ValueId root);

}  // namespace ofsdp::runtime
