// What differentiation has to walk: the values that a trained parameter reaches, and of their nodes
// those from which the loss is reached.
//
// Ownership: values. Threads: any. Errors: kInput naming the file, and every operator on the path that
// has no gradient, with its nodes.
#pragma once

#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

struct LossPath {
  std::vector<bool> needs;  // per value: a gradient; those of later values do not
  std::vector<bool> nodes;  // per node: on the path

  bool needs_grad(ValueId id) const {
    return static_cast<size_t>(id) < needs.size() && needs[static_cast<size_t>(id)];
  }
};

LossPath find_loss_path(const Graph& graph);
Status check_differentiable(const Graph& graph, const LossPath& path);

}  // namespace ofsdp::importer
