// Bodies of operators (kernels/core/op_def.h) on the sample cases of the operators, by the
// references of the operators that they consist of: values, and gradients by their own rules.
//
// Threads: any.
#pragma once

#include <map>
#include <set>

#include "importer/graph/graph.h"
#include "tests/support/op_values.h"

namespace ofsdp::testing {

// A graph of one node of `op` on inputs of these descs; not present(): absent.
struct OneNode {
  Graph graph;
  Node node;
};
OneNode one_node(const Registry& registry, const std::string& op, const Attributes& attributes,
                 const std::vector<TensorDesc>& inputs, const std::vector<TensorDesc>& outputs,
                 const std::vector<ConstantPtr>& constants = {});

std::vector<TensorDesc> descs_of(const std::vector<RefTensor>& tensors);

// Every value of a body on these inputs.
std::map<ValueId, RefTensor> body_values(const Graph& body, const std::vector<RefTensor>& inputs);

// Gradients of the inputs that are `needed`, for gradients `seeds` of the outputs. Adds to `error`
// what goes wrong on the way.
std::map<size_t, RefTensor> body_gradients(const Registry& registry, const OpDef& op,
                                           const SampleCase& sample, const CaseValues& values,
                                           const std::set<size_t>& needed,
                                           const std::map<size_t, std::vector<double>>& seeds,
                                           std::string& error);

}  // namespace ofsdp::testing
