// What a run says about --cpu-offload, beside the bytes of its devices: bytes pinned on the host and
// copied by an update of full micro-batches; or that it has no effect on the CPU. Empty without the
// option.
//
// Pure. Threads: any. Errors: none.
#pragma once

#include <string>

#include "runtime/options.h"
#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

std::string offload_line(const RunPlan& plan, const Options& options);

}  // namespace ofsdp::runtime
