// The fault of a loss that is NaN or infinite, and the search for where a NaN comes from: the
// forward pass of the micro-batch once more, step by step, until a node reads or makes one. That
// may be slow: the run is over. Nothing may have been updated since the micro-batch began.
//
// Ownership: views. Threads: the one that runs the program. Errors: what the steps say.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "runtime/program/binding.h"

namespace ofsdp::runtime {

// True of an unshard, or the copy up before it.
bool is_of_unshard(const Operation& op);

bool any_nan(std::span<const float> values);

struct NanSearch {
  std::function<Status(const Operation&)> execute;         // comes back when the step is done
  std::function<Result<bool>(const TensorView&)> has_nan;  // float32 with an address
  bool here = true;       // false: this rank only takes part in the gathers of those that search
  bool together = false;  // other ranks wait in every gather, also after the first NaN
};

// The value or node, in words. Runs nodes and unshards units, no more.
Result<std::string> first_nan(const BoundProgram& program, const NanSearch& search);

// kFault of a loss that is not finite; `first` may be empty.
Status loss_fault(const ProgramPlan& plan, float loss, int64_t step, int rank,
                  const std::string& first = "");

}  // namespace ofsdp::runtime
