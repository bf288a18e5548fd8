// fsdp-run demo: a whole run in a few seconds, without network, Python or a model at hand. Makes a
// small network and data (demo_files.h) in a folder, evaluates it, trains it with full_shard on two
// ranks, and evaluates the trained file. Each of the three is a command of this program, run as a
// user would run it, printed before it runs and kept in the folder's commands.sh.
//
// Ownership: the child process lives in the call, and ends when this process does. Threads: the
// main one (the kernel ties the child's life to the thread that forks it). Errors: kInput, a folder
// that holds something else, or the command started as a rank; kFault (disk, no process). Else the
// exit status of the first command that failed, which has said why; 0 when none did.
#pragma once

#include "kernels/base/status.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

Result<int> run_demo(const Options& options);

}  // namespace ofsdp::runtime
