// write_text: a whole text to a descriptor at its position: a log, a pipe, a terminal.
//
// Texts of one descriptor may interleave. Returns errno; 0: all was written. A call that a signal
// interrupts goes on.
#pragma once

#include <string_view>

namespace ofsdp::base {

[[nodiscard]] int write_text(int fd, std::string_view text);

}  // namespace ofsdp::base
