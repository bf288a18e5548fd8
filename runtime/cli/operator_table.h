// The table of `fsdp-run ops`: every operator the registry knows, as text or JSON.
// Threads: any. Errors: none.
#pragma once

#include <string>

#include "kernels/core/registry.h"

namespace ofsdp {

std::string operator_table(const Registry& registry, bool json);

}  // namespace ofsdp
