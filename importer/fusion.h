// fuse: rewrites of a specialized graph that save passes over memory and change no value.
//
//   MaxPool(Relu(x)) -> MaxPool(x) with ofsdp_activation="relu"   when nobody else reads the Relu:
//                     the largest of what is clamped is what is largest, clamped; the gradient of a
//                     window that is clamped stops either way. Four times less is clamped.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include "importer/graph.h"

namespace ofsdp {

Graph fuse(const Graph& graph);

}  // namespace ofsdp
