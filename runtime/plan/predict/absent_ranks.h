// The communicator of `fsdp-run plan`: rank 0 of a world whose other ranks are not there, on one
// host or on several, each with as many. It opens data and answers who it is; nothing else
// communicates while planning.
//
// Ownership: as communicator.h. Threads: one. Errors: kFault where data cannot be unpacked.
#pragma once

#include <memory>

#include "fsdp/comm/communicator.h"

namespace ofsdp::runtime {

std::unique_ptr<Communicator> make_absent_ranks(int world, int hosts, bool common_memory);

}  // namespace ofsdp::runtime
