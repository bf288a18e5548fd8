// The removal of what killed ranks leave next to their files.
//
// Threads: one, when no rank of the run is left. Errors: none; where a removal fails, the message
// about the failed run says all that matters.
#pragma once

#include <string>

namespace ofsdp::runtime {

// Removes what a failed run left next to its output file and in its checkpoint folder; both may be
// empty.
void tidy_after_failure(const std::string& output, const std::string& checkpoint_dir);

}  // namespace ofsdp::runtime
