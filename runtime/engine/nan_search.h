// The fault of a loss or gradient that is NaN or infinite, and the search for its origin: the
// forward pass of the micro-batch once more (and backward, if the loss is finite and a gradient
// is not), step by step, until a node reads or makes a NaN. That may be slow: the run is over.
// Nothing may have been updated since the micro-batch began.
//
// The fault's first line is the message; tables follow in lines of their own, which the command
// prints on stdout: the ranges of the node's operands, and whatever else is known.
//
// Ownership: views. Threads: the one that runs the program. Errors: what the steps say.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <string>

#include "kernels/core/tensor.h"
#include "runtime/program/binding.h"

namespace ofsdp::runtime {

// The smallest and the largest finite value of a tensor, and the number of NaNs and infinities.
// Slow: for runs that end.
struct ValueRange {
  double least = std::numeric_limits<double>::infinity();  // of the finite values
  double most = -std::numeric_limits<double>::infinity();
  int64_t count = 0, nans = 0, infinite = 0;

  // Adds contiguous elements. Does nothing for types that are not numbers.
  void add(DType dtype, std::span<const std::byte> bytes);
};

// "-0.4 to 2.31, 3 NaN, 1 infinite".
std::string text(const ValueRange& range);

// True of an unshard, or the copy up before it.
bool is_of_unshard(const Operation& op);

bool any_nan(std::span<const float> values);

struct NanSearch {
  std::function<Status(const Operation&)> execute;             // comes back when the step is done
  std::function<Result<ValueRange>(const TensorView&)> range;  // of a view with an address
  bool here = true;       // false: this rank only takes part in the gathers of those that search
  bool together = false;  // other ranks wait in every gather, also after the first NaN
  bool gradients =
      false;  // goes on after the loss, where infinite results of finite operands count
};

struct NanFound {
  std::string first;     // the value or node, in words
  std::string operands;  // the node's, a line each; empty: none was found
};

// Runs nodes and unshards units, no more.
Result<NanFound> first_nan(const BoundProgram& program, const NanSearch& search);

// kFault of a loss that is not finite; `found` may be empty.
Status loss_fault(const ProgramPlan& plan, float loss, int64_t step, int rank,
                  const NanFound& found = {});

// The same error with lines after its message; none where they are empty.
Status with_table(Status error, const std::string& lines);

}  // namespace ofsdp::runtime
