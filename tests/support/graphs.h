// Small graphs for tests: a chain of Gemm and Relu with a loss, specialized and differentiated,
// built with the importer's own passes but without a file.
//
// Ownership: the registry must outlive the graphs.
#pragma once

#include <string>
#include <vector>

#include "importer/graph.h"

namespace ofsdp::testing {

// x[batch, widths[0]] -> Gemm, Relu, Gemm, ... -> [batch, widths.back()], cross entropy with
// labels[batch]; parameters "w0", "b0", "w1", ... all trained.
Graph mlp_training_graph(const Registry& registry, int64_t batch,
                         const std::vector<int64_t>& widths);

}  // namespace ofsdp::testing
