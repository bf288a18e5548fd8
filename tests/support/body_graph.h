// Bodies of operators (kernels/core/op_def.h) on the operators' sample cases, by the references of
// the operators inside the body: values, and gradients by their own rules.
//
// Threads: any.
#pragma once

#include <map>
#include <set>

#include "importer/graph/graph.h"
#include "tests/support/op_values.h"

namespace ofsdp::testing {

// A graph with one node of `op` on inputs with these descs; not present(): absent.
struct OneNode {
  Graph graph;
  Node node;
};
OneNode one_node(const Registry& registry, const std::string& op, const Attributes& attributes,
                 const std::vector<TensorDesc>& inputs, const std::vector<TensorDesc>& outputs,
                 const std::vector<ConstantPtr>& constants = {});

std::vector<TensorDesc> descs_of(const std::vector<RefTensor>& tensors);

// Every value in a body on these inputs.
std::map<ValueId, RefTensor> body_values(const Graph& body, const std::vector<RefTensor>& inputs);

// Gradients for the inputs in `needed`, from gradients `seeds` of the outputs. Adds every failure
// on the way to `error`.
std::map<size_t, RefTensor> body_gradients(const Registry& registry, const OpDef& op,
                                           const SampleCase& sample, const CaseValues& values,
                                           const std::set<size_t>& needed,
                                           const std::map<size_t, std::vector<double>>& seeds,
                                           std::string& error);

}  // namespace ofsdp::testing
