// assign_layouts: decides in which order the bytes of each activation lie, and puts ofsdp.Reorder
// nodes where two neighbours want different ones.
//
// Convolutions and poolings run faster channels last; elementwise nodes between them take what they
// are given, so that a chain of them needs no reorder; everything else, and all inputs, parameters
// and gradients of parameters, is plain (OpDef::layout says who asks for what). A value is
// reordered at most once each way. Threads: any.
#pragma once

#include "importer/graph/graph.h"

namespace ofsdp::importer {

Result<Graph> assign_layouts(const Graph& graph);

}  // namespace ofsdp::importer
