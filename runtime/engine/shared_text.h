// Rank 0's text for all ranks: names of files that it has made. Collective.
#pragma once

#include <string>

#include "fsdp/comm/communicator.h"

namespace ofsdp::runtime {

// Returns rank 0's `text`; ignores the text of other ranks.
Result<std::string> text_of_rank0(Communicator& communicator, std::string text);

}  // namespace ofsdp::runtime
