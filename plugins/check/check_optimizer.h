// The checks of an optimizer by check-plugin: the same updates of 1000 elements whole and in two
// parts, and whether it writes outside of its buffers.
//
// Ownership: values. Threads: one, of a process that may end by it. Errors: none; lines that open
// with "! " are faults.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/optimizer.h"

namespace ofsdp::plugins {

std::vector<std::string> check_optimizer(const OptimizerDef& def);

}  // namespace ofsdp::plugins
