// fsdp-run doctor: what would go wrong in a run with these options, and what would be better, a
// line each with the flag that mends it. Nothing is written but the picture of --find-lr.
//
//   1. the plan for the ranks that were asked for: memory       (doctor.cpp)
//   2. the model: merged copies, frozen statistics, the loss    (doctor_model.cpp)
//   3. the data: labels and values of the first rows            (doctor_data.cpp)
//   4. updates of one rank on the CPU, on a copy of the weights (doctor_updates.cpp)
//   5. with --find-lr a sweep of learning rates                 (lr_sweep.h)
//
// A mistake that would end the run ends the later steps. Ownership: everything lives in the call.
// Threads: one; one process. Errors: kInput of a command that cannot be looked at; kFault.
#pragma once

#include "runtime/train/prepared_run.h"

namespace ofsdp::runtime {

// The communicator of `context` has the ranks that were asked for, which need not be there.
Status run_doctor(const RunContext& context);

}  // namespace ofsdp::runtime
