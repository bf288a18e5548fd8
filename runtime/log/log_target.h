// The files that a run writes rows into while it goes on: --metrics and --trace. As --output they
// are new or regular files; unlike it they are written in place, so a link, a device, a pipe and a
// folder are refused before anything is opened; run_files.h refuses files that the run reads.
//
// Threads: any. Errors: kInput, which names the flag, the path and what was found.
#pragma once

#include <string>

#include "kernels/base/posix_file.h"

namespace ofsdp::runtime {

Status check_log_target(const char* flag, const std::string& path);

// Makes `part`, an empty file next to `path`, through no link.
Status make_log_part(const char* flag, const std::string& path, const std::string& part);

}  // namespace ofsdp::runtime
