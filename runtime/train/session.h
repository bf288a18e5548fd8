// A run from the options to its end: the commands train, plan and eval on one rank.
//
// Reads from top to bottom as the stages: prepared (prepared_run.h), memory, loop, trained file.
// Rank 0 prints the tables of each stage on stdout.
//
// Ownership: everything lives in the call; the ledger must outlive the communicator. Threads: the
// caller's, and helpers that end with it. Collective. Errors: kInput before the first step, kFault
// after. `on_failure` hears of one before the call ends what computes: devices that wait for ranks
// in vain may take seconds to give up, or the process may have to end there.
#pragma once

#include <functional>

#include "runtime/train/prepared_run.h"
#include "runtime/train/run_facts.h"

namespace ofsdp::runtime {

Status run_session(
    const RunContext& context, const RunTexts& texts,
    const std::function<void(const Status&)>& on_failure = [](const Status&) {});

}  // namespace ofsdp::runtime
