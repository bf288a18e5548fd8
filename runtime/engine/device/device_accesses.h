// What each step of a bound program touches on a device, and on which stream it is: what StreamPlan
// orders. Addresses are compared, never followed, so a report may make them up.
//
// Inputs have no address yet; only uploads write them. What lies in the run's state is used by one
// stream alone, or is written before the other forks; the loss, `stop`, before what reads it: on the
// compute stream, or with several ranks on that of the updates.
//
// Pure. Ownership: views. Threads: any. Errors: none.
#pragma once

#include "runtime/program/binding.h"
#include "runtime/program/stream_plan.h"

namespace ofsdp::runtime {

struct AccessContext {
  const Plan& plan;
  const OffloadPlan& offload;
  const std::vector<UnitState>& units;  // device addresses
  const std::byte* state;               // ofsdp_run_state
  bool several = false;                 // ranks
  bool measures = false;                // norms of parameters, on the device
};

std::vector<StepAccess> step_accesses(const AccessContext& context, const BoundProgram& program);

}  // namespace ofsdp::runtime
