// The storage of values: values that share bytes have one storage, which the memory plan places and
// operands point to.
//
// [Note: sums of gradients] If several nodes contribute to a parameter's gradient (a tied
// embedding), each adds to the previous sum, in place if the operator can. The sum is in the
// gradient's slot from the first part on, so nothing is stored twice or copied: the slot is
// acquired before the node that writes the first part (schedule.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::runtime {

// Returns for each value the value that owns its bytes: itself, the viewed value, or the
// parameter's gradient that it becomes.
std::vector<ValueId> storage_of(const Graph& graph);

// Returns for each value whether it is outside of the arena, in memory that peers read: gradients
// of parameters and joined rows.
std::vector<bool> has_own_place(const Graph& graph);

// Returns the number of inputs of a node with storage `root`. A node that reads it once may
// overwrite it.
int64_t reads_of(const Node& node, const std::vector<ValueId>& storage, ValueId root);

}  // namespace ofsdp::runtime
