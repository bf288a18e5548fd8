// Lowering: operators that another program writes into its graphs and that have no kernel here.
// The importer keeps them as nodes. `specialize` asks the Lowering for nodes in their place, once
// shapes are known. The importer knows this interface alone.
//
// Inputs: a node of a specialized graph. Outputs: nodes added to that graph. A Lowering must
// outlive every graph that has its operators. Threads: any. Errors: kInput naming the node.
#pragma once

#include "importer/graph/graph.h"
#include "kernels/core/registry.h"

namespace ofsdp::importer {

class Lowering {
 public:
  virtual ~Lowering() = default;
  // Returns the operator that a node has until it is lowered; null: it is none of these.
  virtual const OpDef* find(const std::string& domain, const std::string& name) const = 0;
  // Returns true when other nodes in `graph` took the place of `node`, false when `node`, maybe
  // changed, is still to be added. Leaves operators that are not its own alone.
  virtual Result<bool> lower(Graph& graph, Node& node) const = 0;
};

// The operators that a model may use: those of the registry, then those of a Lowering.
struct Operators {
  Operators(const Registry& known, const Lowering* more = nullptr)  // NOLINT: implicit
      : registry(known), lowering(more) {}

  const OpDef* find(const std::string& domain, const std::string& name) const {
    const OpDef* op = registry.find(domain, name);
    return op != nullptr || lowering == nullptr ? op : lowering->find(domain, name);
  }

  const Registry& registry;
  const Lowering* lowering;  // null: none
};

}  // namespace ofsdp::importer
