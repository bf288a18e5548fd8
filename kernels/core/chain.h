// Chain: a short program of scalar operations that runs for every element, so that several
// elementwise operators cost one pass over memory (ofsdp.Chain, ofsdp.ChainGrad).
//
// Values have numbers: first the inputs, then one per step. A step is an operation and the numbers
// of operands, "Mul 0 2"; "Number 0.5" is a constant. A node stores these texts in the attribute
// `steps`, and in `results` the numbers of the values that become outputs, which must be steps.
//
// If a chain has one result, the gradient is a chain too. That chain recomputes the forward values
// that it needs, so that only the inputs and the result are saved for backward.
//
// Fusion passes make chains while planning; kernels/cpu and kernels/cuda run them. Parsing
// malformed steps returns kInput.
#pragma once

#include <climits>
#include <string>
#include <vector>

#include "kernels/core/chain_op.h"
#include "kernels/core/kernel.h"

namespace ofsdp::kernels {

// "GeluTanh"; nullptr after the last operation.
const char* chain_op_name(ChainOp op);
int chain_op_arity(ChainOp op);

struct ChainStep {
  ChainOp op = ChainOp::kNumber;
  int a = -1, b = -1;
  float number = 0;
};

struct Chain {
  static constexpr int kMaxInputs = 12, kMaxSteps = 64;

  int inputs = 0;
  std::vector<ChainStep> steps;
  std::vector<int> results;

  const ChainStep& step(int value) const { return steps[static_cast<size_t>(value - inputs)]; }
  bool is_step(int value) const { return value >= inputs; }
  int add(ChainStep step);  // returns the value's number
  void keep_costly();       // appends exponentials and the like to the results

  Attributes attributes() const;
  static Result<Chain> parse(const Attributes& attributes, size_t inputs);
};

// Returns the gradient of `forward`. The inputs are forward's inputs, then the gradient for result
// 0, then the forward results; results[i] is the gradient for input i if `wanted[i]`, else -1.
// Results may be inputs and may repeat; `compacted` makes it a chain.
Chain chain_gradient(const Chain& forward, const std::vector<bool>& wanted);

// A chain without unused steps and inputs, with every result once.
struct CompactedChain {
  Chain chain;
  std::vector<int> used_inputs;  // numbers in the old chain, in the new order
  // Per old result: the output that holds it; -1 - i if it is the old chain's input i; kNone if it
  // was -1.
  std::vector<int> outputs;
  static constexpr int kNone = INT_MIN;
};
CompactedChain compacted(const Chain& chain);

// Returns whether `part` broadcasts to `shape` only along leading axes: [1, 1, c] or [c] to [a, b,
// c].
bool is_trailing(const Shape& part, const Shape& shape);

}  // namespace ofsdp::kernels
