// One of several answers, chosen with the arrow keys on a terminal. Own code because Debian's
// libraries for this draw whole screens: one line an answer, the chosen one marked.
//
// The terminal is raw while a choice is made and no longer: it is put back when the answer is
// there, at Ctrl-C, and when SIGINT, SIGTERM, SIGHUP or SIGQUIT ends the process, which are held
// back until then. Takes descriptors of a terminal. Ownership: none. Threads: one. Errors: kInput
// when Ctrl-C, Ctrl-D or a closed terminal ends the choice.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::cli {

// Up and down, k and j, digits, the first letter of a name; Enter takes it.
Result<size_t> choose_on_terminal(int in, int out, const std::vector<std::string>& answers,
                                  size_t chosen);

}  // namespace ofsdp::cli
