// Finds where a loss or gradient became NaN or infinite. After a bad loss it runs the micro-batch's
// forward pass again, step by step, until a node reads or makes a NaN; if only a gradient is bad,
// also backward. It may be slow, since the run ends with the result. Engines call it.
//
// REQUIRES: nothing was updated since the micro-batch began, so that the second pass is equal.
//
// The fault's first line is the message. Further lines are tables, which the command prints on
// stdout: the value range of the node's operands, and the growth of norms (--watch).
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <string>

#include "kernels/core/tensor.h"
#include "runtime/engine/binding.h"

namespace ofsdp::runtime {

// The smallest and largest finite value in a tensor, and counts of NaNs and infinities.
struct ValueRange {
  double least = std::numeric_limits<double>::infinity();  // only over finite values
  double most = -std::numeric_limits<double>::infinity();
  int64_t count = 0, nans = 0, infinite = 0;

  // Adds contiguous elements. Does nothing if `dtype` is not a number type.
  void add(DType dtype, std::span<const std::byte> bytes);
};

// "-0.4 to 2.31, 3 NaN, 1 infinite".
std::string text(const ValueRange& range);

// Returns true for an operation that gathers a unit, or copies it to the device before that.
bool is_of_unshard(const Operation& op);

bool any_nan(std::span<const float> values);

struct NanSearch {
  std::function<Status(const Operation&)> execute;  // returns after the operation has ended
  std::function<Result<ValueRange>(const TensorView&)> range;  // reads a tensor's values
  bool here = true;  // false: this rank's loss is good; it only takes part in the others' gathers
  // Other ranks run the same search, so that this one must go on with the gathers after it has
  // found the NaN.
  bool together = false;
  // Also search backward, where an infinite result of finite operands counts like a NaN.
  bool gradients = false;
};

struct NanFound {
  std::string first;     // the value or node, in words
  std::string operands;  // one line per operand of the node; empty if no node was found
};

// Runs the program's nodes and gathers, and no other operation. If no value is NaN, `first` says
// so.
Result<NanFound> first_nan(const BoundProgram& program, const NanSearch& search);

// Returns the kFault for a loss that is NaN. `found` may be empty.
Status loss_fault(const StepProgram& plan, int64_t step, int rank, const NanFound& found = {});

// Appends `lines`, which may be empty, to an error's message.
Status with_table(Status error, const std::string& lines);

}  // namespace ofsdp::runtime
