// fsdp-run check compares loss and gradient of the first batch, computed as in training, with the
// operators' references in double (importer/graph/reference_run.h), which have no fusion, layout,
// 16-bit type or gradient rule.
//
// First, one update of plain gradient descent on one rank gives loss and gradients. Second, central
// differences of the reference give derivatives along random directions of each parameter. Third,
// if they differ, check_nodes.cpp finds the first node that differs by itself.
//
// Writes nothing. Ends within `--limit` if the first part does: parameters are taken in a random
// order, and the others are listed. If a batch is too large for the limit, fewer rows are taken.
// Errors: kFault with the worst parameter and the first node that differs; kInput if the command
// cannot be checked.
#pragma once

#include "importer/graph/reference_run.h"
#include "runtime/train/prepared_run.h"

namespace ofsdp::runtime {

// `context` has the requested number of ranks, but the others need not run.
Status run_check(const RunContext& context);

// The rest is for check.cpp and check_nodes.cpp.

// Values of inputs and parameters, by name.
using NamedNumbers = std::map<std::string, std::vector<double>>;

struct NodeSearch {
  const TrainingSource& source;
  int64_t batch;
  const NamedNumbers& numbers;
  const StepContext& step;
  ReferenceRun::Clock::time_point deadline;
  double tolerance;  // for values and derivatives, relative to the largest
};

// Returns the first node of the fused training graph that differs from the reference in value or
// gradient, or the first that a rewriting has changed. Empty if none is found.
Result<std::string> first_parting_node(const NodeSearch& search);

}  // namespace ofsdp::runtime
