// The gradient operators of ONNX Runtime in terms of ours: which forward operator each belongs to,
// and what its inputs and outputs are to that operator. replace_gradient asks the forward operator's
// gradient rule for the nodes, as autodiff would; docs/from-onnxruntime-training.md has the list.
//
// Ownership: the rules are constants of the program. Threads: any. Errors: kInput with file, node,
// expected and found.
#pragma once

#include <string>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

// What an input of the gradient operator is.
struct OrtOperand {
  enum class Kind {
    kInput,   // of the forward operator
    kOutput,  // of the forward operator
    kGrad,    // of an output of it
    kShape    // the shape of an input, as a constant
  };
  Kind kind = Kind::kInput;
  size_t index = 0;
};

struct OrtGradientRule {
  std::string name;     // "ReluGrad"
  std::string forward;  // "Relu", or "com.microsoft.BiasGelu"
  std::vector<OrtOperand> operands;
  std::vector<size_t> gives;  // per output: the forward input whose gradient it is
  int of_maker = -1;  // an operand that the forward node made: the node itself tells the rest
  bool by_name =
      false;  // the forward node is found by the name of the gradient's: "pool1_Grad/..."
};

const std::vector<OrtGradientRule>& ort_gradient_rules();

// Adds the nodes in place of `node`, whose operator has a rule.
Status replace_gradient(Graph& graph, const Node& node);

}  // namespace ofsdp::importer
