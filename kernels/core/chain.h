// Chain: a short program of scalar operations that is applied to every element of the operands, so
// that several elementwise operators cost one pass over memory (ofsdp.Chain, ofsdp.ChainGrad).
//
// Values are numbered: first the inputs, then one for each step. A step names its operation and the
// values it takes, "Mul 0 2"; "Number 0.5" is a constant. As attributes of a node: `steps`, a list
// of these texts, and `results`, the values that become outputs; every result is a step's.
//
// The gradient of a chain with one result is again a chain: it computes the forward values that it
// needs again, inside the block, so only the inputs and the result are saved.
//
// Steps that no chain can have are input errors.
#pragma once

#include <climits>
#include <string>
#include <vector>

#include "kernels/core/attributes.h"
#include "kernels/core/chain_op.h"

namespace ofsdp::kernels {

// "GeluTanh"; nullptr after the last.
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
  int add(ChainStep step);  // the value it makes
  void keep_costly();       // makes exponentials and the like results after the first

  Attributes attributes() const;
  static Result<Chain> parse(const Attributes& attributes, size_t inputs);
};

// Returns the gradient of `forward`. It has the inputs of `forward`, then the gradient of the first
// result, then the results; results[i] is the gradient of input i if `wanted`, else -1. Results may
// be inputs and may repeat; `compacted` makes it a chain.
Chain chain_gradient(const Chain& forward, const std::vector<bool>& wanted);

// A chain without steps that no result needs and without inputs that no step reads, with every
// result once.
struct CompactedChain {
  Chain chain;
  std::vector<int> used_inputs;  // of the old chain, in the order of the new one
  // For each old result: the output that has it, or -1 - the input that it is; kNone where it was
  // -1.
  std::vector<int> outputs;
  static constexpr int kNone = INT_MIN;
};
CompactedChain compacted(const Chain& chain);

// Returns whether an operand of shape `part` is repeated along leading axes: [1, 1, c] or [c] of
// [a, b, c].
bool is_trailing(const Shape& part, const Shape& shape);

}  // namespace ofsdp::kernels
