// The manual page fsdp-run(1) in the macros of man(7), written from the tables of commands and
// options: `fsdp-run man > fsdp-run.1`.
//
// Threads: any. Errors: none.
#pragma once

#include <string>

namespace ofsdp::cli {

std::string manual_page();

}  // namespace ofsdp::cli
