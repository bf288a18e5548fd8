// Finds where a loss or gradient became NaN or infinite: runs the forward pass again (and backward,
// if the loss is finite but a gradient is not), step by step, until a node reads or makes a NaN. It
// may be slow, since the run is over. REQUIRES: nothing was updated since the micro-batch began.
//
// The fault's first line is the message. Tables follow in further lines, which the command prints
// on stdout: the ranges of the node's operands, and the growth of norms.
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
  double least = std::numeric_limits<double>::infinity();  // finite values alone
  double most = -std::numeric_limits<double>::infinity();
  int64_t count = 0, nans = 0, infinite = 0;

  // Adds contiguous elements. Does nothing if `dtype` is no number.
  void add(DType dtype, std::span<const std::byte> bytes);
};

// "-0.4 to 2.31, 3 NaN, 1 infinite".
std::string text(const ValueRange& range);

// Returns true for an unshard and for the copy up before it.
bool is_of_unshard(const Operation& op);

bool any_nan(std::span<const float> values);

struct NanSearch {
  std::function<Status(const Operation&)> execute;  // returns when the step is done
  std::function<Result<ValueRange>(const TensorView&)> range;
  bool here = true;        // false: this rank only takes part in the gathers of ranks that search
  bool together = false;   // other ranks wait in every gather, also after the first NaN
  bool gradients = false;  // search backward too; there infinite results of finite operands count
};

struct NanFound {
  std::string first;     // the value or node, in words
  std::string operands;  // a line for each operand of the node; empty if no node was found
};

// Runs nodes and unshards, no other operations.
Result<NanFound> first_nan(const BoundProgram& program, const NanSearch& search);

// Returns kFault for a loss that is not finite; `found` may be empty.
Status loss_fault(const StepProgram& plan, float loss, int64_t step, int rank,
                  const NanFound& found = {});

// Appends `lines`, which may be empty, to an error's message.
Status with_table(Status error, const std::string& lines);

}  // namespace ofsdp::runtime
