// A text of rank 0's for all ranks: names of files that it has made. Collective, like the
// communicator's calls. Errors: the communicator's.
#pragma once

#include <string>

#include "fsdp/comm/communicator.h"

namespace ofsdp::runtime {

// `text` of rank 0; what the others give does not matter.
Result<std::string> text_of_rank0(Communicator& communicator, std::string text);

}  // namespace ofsdp::runtime
