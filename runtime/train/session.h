// A run from the options to its end: the commands train, plan and eval on one rank.
//
// Reads from top to bottom as the stages: model and data, plan, memory, loop, trained file. Rank 0
// prints the tables of each stage on stdout.
//
// Ownership: everything lives in the call; the ledger must outlive the communicator. Threads: the
// caller's, and helpers that end with it. Collective. Errors: kInput before the first step, kFault
// after; the caller reports them.
#pragma once

#include "fsdp/comm/communicator.h"
#include "kernels/core/optimizer.h"
#include "kernels/core/registry.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

// `configuration`: the effective configuration, of rank 0; empty: none is printed or saved.
Status run_session(const Options& options, const ModelOrigin& origin,
                   const std::string& configuration, const Registry& registry,
                   const std::vector<OptimizerDef>& optimizers, Communicator& communicator,
                   MemoryLedger& ledger);

}  // namespace ofsdp::runtime
