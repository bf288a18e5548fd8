// The name of this host, for messages. Ownership: a value. Threads: any. Errors: none; "?" where
// the system does not say.
#pragma once

#include <string>

namespace ofsdp::fsdp {

std::string host_name();

}  // namespace ofsdp::fsdp
