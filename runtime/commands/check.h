// fsdp-run check: loss and gradient of the first batch as training computes them, against the same
// by the operators' own references in double (importer/graph/reference_run.h), which know no
// fusion, layout, 16-bit type or gradient rule.
//
//   1. one update of plain gradient descent on one rank shows loss and gradients       (check.cpp)
//   2. along random directions of each parameter, central differences of the reference
//   3. where they part, the first node that does, by itself                      (check_nodes.cpp)
//
// Nothing is written. All ends within `--limit` if 1 does: parameters are taken in a random order,
// and the others are listed. If a batch is too large for the limit, fewer rows are taken.
//
// Threads: one; one process. Errors: kFault naming the worst parameter and the first node where the
// two part; kInput of a command that cannot be looked at.
#pragma once

#include "importer/graph/reference_run.h"
#include "runtime/train/prepared_run.h"

namespace ofsdp::runtime {

// The communicator of `context` has the ranks that were asked for, which need not be there.
Status run_check(const RunContext& context);

// --- of check_nodes.cpp ---

// Values of the inputs and parameters of a graph, by name.
using NamedNumbers = std::map<std::string, std::vector<double>>;

struct NodeSearch {
  const TrainingSource& source;
  int64_t batch;
  const NamedNumbers& numbers;
  const StepContext& step;
  ReferenceRun::Clock::time_point deadline;
  double tolerance;  // of values and of derivatives, relative to the largest
};

// The node of the fused training graph whose kernel, or whose gradient, is first another than its
// reference says; or that a rewriting has made another than the file's. Empty: none was found.
Result<std::string> first_parting_node(const NodeSearch& search);

}  // namespace ofsdp::runtime
