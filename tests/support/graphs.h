// Small graphs for tests, built with the importer's own passes but without a file.
//
// Ownership: the registry must outlive the graphs.
#pragma once

#include <string>
#include <vector>

#include "importer/graph/graph.h"
#include "tests/support/namespaces.h"

namespace ofsdp::testing {

// A specialized graph under construction; every method returns the new value.
struct GraphMaker {
  explicit GraphMaker(const Registry& registry);

  ValueId input(const std::string& name, TensorDesc desc);
  ValueId parameter(const std::string& name, Shape shape, bool trained = true);
  ValueId ints(const std::vector<int64_t>& values);
  ValueId node(const std::string& op, const std::string& name, const std::vector<ValueId>& inputs,
               const Attributes& attributes = {});

  Graph graph;
};

// x[batch, widths[0]] -> Gemm, Relu, Gemm, ... -> [batch, widths.back()], cross entropy with
// labels[batch]; parameters "w0", "b0", "w1", ... all trained.
Graph mlp_training_graph(const Registry& registry, int64_t batch,
                         const std::vector<int64_t>& widths);

// The operators' names, in order.
std::vector<std::string> operators(const Graph& graph);

}  // namespace ofsdp::testing
