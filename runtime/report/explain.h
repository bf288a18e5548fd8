// The answer of `fsdp-run plan --explain`: for each node the implementation that its kernel came
// from, and why implementations listed before it were not taken.
//
// A line a node, in the order of the graph: "Relu '/relu/Relu': loops (not onednn: REASON)". Views
// have no kernel. Kernels are made anew, one after the other, only to ask for the choice. The graph
// is that of the program with the largest arena, as for the memory at the peak.
#pragma once

#include <string>

#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

std::string explain(const RunPlan& plan);

}  // namespace ofsdp::runtime
