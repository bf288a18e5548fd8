// The operands of a gradient node of ONNX Runtime, put where the forward operator's gradient rule
// looks for them. An input of which nothing is known but its shape, and that it is there, has a
// stand-in: a value that no node makes or reads.
//
// Ownership: values; stand-ins go into the graph. Threads: one. Errors: kInput without the node.
#pragma once

#include "importer/dialects/onnxruntime/ort_gradients.h"

namespace ofsdp::importer {

struct OrtGradientOperands {
  Attributes attributes;                        // of the forward operator
  std::vector<ValueId> inputs, outputs, grads;  // of it; 0: absent
  int maker = -1;                               // the forward node, where the rule needs it
  int stand_ins = 0;                            // for inputs whose gradient is wanted
};

Result<OrtGradientOperands> place_operands(Graph& graph, const Node& node,
                                           const OrtGradientRule& rule);

// Whether `node` gives the gradient of that forward input.
bool gives_gradient(const Node& node, const OrtGradientRule& rule, size_t input);

}  // namespace ofsdp::importer
