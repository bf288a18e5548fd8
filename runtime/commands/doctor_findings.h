// The findings of the doctor and the checks that add them. Errors: those of reading data and
// running updates.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/log/metrics.h"
#include "runtime/train/prepared_run.h"

namespace ofsdp::runtime {

struct Findings {
  // `what` and `mend` must be escaped; advice in lines of its own becomes part of the one line.
  // `fatal`: the run would stop here. `table`: indented lines that follow.
  void add(const std::string& what, const std::string& mend, bool fatal = false,
           const std::string& table = "");
  std::vector<std::string> lines;  // one a finding, with the table
  bool stops = false;
};

// Returns "'a', 'b' and 3 more", escaped.
std::string some_names(const std::vector<std::string>& names);

// These two run nothing.
Status check_model(const ModelSetup& setup, const Options& options, Findings& findings);
void check_evaluation(const ModelSetup& setup, Findings& findings);
// Reads the first rows.
Status check_data(const ModelSetup& setup, const Options& options, Findings& findings);

// Makes one update with plain gradient descent, and some with the options of the run. `context` has
// one rank; `total`: updates of the whole run.
Status check_updates(const RunContext& context, int64_t total, Findings& findings);

// The updates 1 ... `count` of a run of one rank, until the loss is not finite.
struct SomeUpdates {
  std::vector<StepRow> rows;
  std::string failure;  // why there are fewer rows; empty if there are not
  std::string table;    // lines about the failure
  // with `compare`: trained tensors that the first update left unchanged
  std::vector<std::string> still;
  int64_t classes = 0;  // of the loss
};
Result<SomeUpdates> run_updates(const RunContext& context, int64_t count, bool compare,
                                const std::function<bool(const StepRow&)>& goes_on);

}  // namespace ofsdp::runtime
