// Agreement of ranks on the schedule, beyond its hash: which step is the first to differ.
//
// Collective: called by all ranks once their hashes have turned out to differ. Compares, program by
// program (those of the full batch, which every rank plans), what communicates: kind, unit, and the
// unit's size.
//
// Ownership: none. Threads: one. Errors: always kFault: with both ranks' steps, or that of an
// exchange.
#pragma once

#include "fsdp/comm/communicator.h"
#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

Status first_difference(const RunPlan& plan, Communicator& communicator);

// A step that communicates as a number that a double holds, and back as text.
double step_code(const Step& step, const Plan& plan);
std::string step_code_text(double code);

// The codes of all that communicates, in order; `batch` is the full one.
std::vector<double> step_codes(const RunPlan& plan);

}  // namespace ofsdp::runtime
