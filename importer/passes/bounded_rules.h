// The place in the outputs of an input's bounded axis (bounded_axes.h), for operators that work
// slice by slice along it, so that padding meets padding only.
//
// Threads: any. Errors: none; nullopt means "not slice by slice, or unknown".
#pragma once

#include <optional>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

struct CarriedAxis {
  int axis = 0;
  int64_t times = 1;  // slices of the output per slice of the input: factor * times / over
  int64_t over = 1;

  bool operator==(const CarriedAxis&) const = default;
};

// The node's outputs have descs.
std::optional<CarriedAxis> carried_axis(const Graph& graph, const Node& node, size_t input,
                                        int axis);

// Returns whether another input, without a bounded axis, fits that axis of the output: it is the
// same for all slices.
bool fits_axis(const Graph& graph, const Node& node, size_t input, int output_axis);

}  // namespace ofsdp::importer
