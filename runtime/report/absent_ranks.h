// The communicator of `fsdp-run plan`: rank 0 of a world whose other ranks are not there, on one host
// or on several. It opens data and answers who it is; nothing else communicates while planning.
//
// Ownership: as communicator.h. Threads: one. Errors: kFault where data cannot be unpacked.
#pragma once

#include <memory>

#include "fsdp/communicator.h"

namespace ofsdp {

std::unique_ptr<Communicator> make_absent_ranks(int world, bool one_host);

}  // namespace ofsdp
