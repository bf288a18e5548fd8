// Distributes a text from rank 0 to all ranks, such as the name of a file that rank 0 has made.
#pragma once

#include <string>

#include "fsdp/comm/communicator.h"

namespace ofsdp::runtime {

// Returns rank 0's `text` on every rank; the other ranks' `text` is ignored. Collective.
Result<std::string> text_of_rank0(Communicator& communicator, std::string text);

}  // namespace ofsdp::runtime
