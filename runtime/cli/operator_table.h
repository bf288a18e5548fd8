// The table of `fsdp-run ops`: every operator the registry knows, or with --plugin those that the
// plug-ins offer, as text or JSON.
// Threads: any. Errors: none.
#pragma once

#include <string>

#include "plugins/loading/loader.h"

namespace ofsdp::cli {

std::string operator_table(const LoadedPlugins& plugins, bool json);

}  // namespace ofsdp::cli
