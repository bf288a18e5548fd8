// Starts the ranks of a run on this host: the same program with the same arguments, one process a
// rank, told by the environment which rank it is (as torchrun does; see fsdp/rank_identity.h).
//
// Ranks get their share of this process's cores when there is one for each. They die with the
// launcher, also when it is killed. SIGINT and SIGTERM are passed on. When one rank has failed the
// others have a few seconds to notice and end; then they are killed.
//
// Ownership: the child processes are this call's. Threads: the main one (the kernel ties the
// children's lives to the thread that forks them). Errors: kFault when a rank cannot be started, or
// was killed and no rank is left that has reported a failure; else the exit status, everything
// having been printed.
#pragma once

#include "kernels/core/status.h"

namespace ofsdp {

// `argv` as main got it, null-terminated. The exit status of the run: 0, 1 or 2.
Result<int> launch_ranks(int nproc, char* const* argv);

}  // namespace ofsdp
