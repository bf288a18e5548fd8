// join_epilogues: products that do at their end what would be a pass of its own, for a device whose
// library has such kernels. Gemm nodes become ofsdp.GemmEpilogue together with
//
//   Gelu (tanh) of the product             forwards; the product itself stays, for the gradient
//   ofsdp.GeluGrad (tanh) of the product   backwards
//   Add of the product to what was there   residuals, sums of gradients
//   ofsdp.SumTo [n] of an operand          the bias gradient with the gradient of the weights;
//                                          else of what ofsdp.GeluGrad gives
//
// Views between them (Reshape and the like) go around. Works on finished graphs, forwards and
// backwards, also recomputed ones; a node stays where its product was, so no value lives longer and
// no unit is needed later. `takes` is asked for every node that could be made; where it says no the
// parts stay apart. Graph::fused counts, as "epilogue".
//
// Threads: any. Errors: none.
#pragma once

#include <functional>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

using TakesNode = std::function<bool(const Graph&, const Node&)>;

Graph join_epilogues(const Graph& graph, const TakesNode& takes);

}  // namespace ofsdp::importer
