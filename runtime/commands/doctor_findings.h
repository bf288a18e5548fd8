// Findings of the doctor, and the checks that make them.
//
// Threads: one. Errors: those of reading data and of running updates.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/log/metrics.h"
#include "runtime/train/prepared_run.h"

namespace ofsdp::runtime {

struct Findings {
  // `what` and `mend` are escaped; advice in lines of its own becomes a part of the one line.
  // `fatal`: a run would not get further.
  // `table`: lines that follow it, indented.
  void add(const std::string& what, const std::string& mend, bool fatal = false,
           const std::string& table = "");
  std::vector<std::string> lines;  // a finding each, with its table
  bool stops = false;
};

// "'a', 'b' and 3 more", escaped.
std::string some_names(const std::vector<std::string>& names);

// Without running anything.
Status check_model(const ModelSetup& setup, const Options& options, Findings& findings);
void check_evaluation(const ModelSetup& setup, Findings& findings);
// On the first rows.
Status check_data(const ModelSetup& setup, const Options& options, Findings& findings);

// One update with plain gradient descent, and some with the options of the run. `context` has one
// rank; `total`: updates of the whole run.
Status check_updates(const RunContext& context, int64_t total, Findings& findings);

// Updates 1 ... `count` of a run of one rank, as far as the loss is a number.
struct SomeUpdates {
  std::vector<StepRow> rows;
  std::string failure;             // why there are fewer; empty: there are not
  std::string table;               // what is known of it, lines
  std::vector<std::string> still;  // with `compare`: trained tensors that the first one left alone
  int64_t classes = 0;             // of the loss
};
Result<SomeUpdates> run_updates(const RunContext& context, int64_t count, bool compare,
                                const std::function<bool(const StepRow&)>& goes_on);

}  // namespace ofsdp::runtime
