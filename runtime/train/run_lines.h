// Lines that a run prints about itself before it starts: teacher, types it computes in,
// --cpu-offload, slices, memory that this host lacks.
//
// Threads: any. Errors: none.
#pragma once

#include <string>

#include "kernels/base/cgroup.h"
#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

// --param-dtype, --reduce-dtype, --buffer-dtype, --matmul-precision.
std::string dtypes_lines(const Options& options, bool on_device);

// Empty without a teacher.
std::string teacher_line(const ModelSetup& setup);

// With --cpu-offload: bytes pinned on the host and copied by an update of full micro-batches, or
// that it has no effect on the CPU. Empty without the option.
// `exact`: in bytes.
std::string offload_line(const RunPlan& plan, const RunSettings& settings, bool exact);

// With --deterministic across_ranks, else empty.
std::string slices_line(const BatchSizes& batch);

// Says in one line that the ranks of this host need more memory than it allows; empty when it is
// enough, and for a run on a device.
std::string memory_lack(const RunPlan& plan, const Communicator& communicator,
                        const MachineMemory& memory);

}  // namespace ofsdp::runtime
