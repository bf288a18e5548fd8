#include "runtime/cli/launch/launcher.h"

#include "kernels/base/escaped.h"
#include "runtime/cli/launch/host_ranks.h"
#include "runtime/state/leftovers.h"

namespace ofsdp::cli {
namespace {

constexpr std::chrono::milliseconds kLook{100};

Status check(const LaunchOptions& o) {
  if (o.nnodes > 1 && o.rdzv_endpoint.empty()) {
    return input_error("--nnodes {}: expected --rdzv-endpoint HOST:PORT beside it, found none",
                       o.nnodes);
  }
  if (o.min_nodes && *o.min_nodes > o.nnodes) {
    return input_error("--min-nodes: expected at most {} as --nnodes, found {}", o.nnodes,
                       *o.min_nodes);
  }
  if (o.node_rank && *o.node_rank >= o.nnodes) {
    return input_error("--node-rank: expected 0 to {} as --nnodes is {}, found {}", o.nnodes - 1,
                       o.nnodes, *o.node_rank);
  }
  return {};
}

void say(const std::string& line) {
  if (!line.empty()) print_lines(stderr, "fsdp-run: " + line + "\n");
}

// One attempt: until all ranks of this host have ended.
Result<Outcome> run_ranks(const Assignment& assignment, const LaunchPlan& plan, char* const* argv,
                          const SignalQueue& signals, NodeLink& link) {
  HostRanks ranks(assignment, plan, argv);
  OFSDP_RETURN_IF_ERROR(ranks.start(signals));
  bool interrupted = false, told = false;
  while (ranks.reap()) {
    if (ranks.failed() && !told) link.failing();
    told = ranks.failed();
    if (link.told_to_stop()) ranks.end_soon();
    ranks.kill_late();
    const SignalQueue::Heard heard = signals.wait(link.fd(), kLook);
    if (!heard.interrupts()) continue;
    interrupted = true;
    if (heard.from_process) ranks.send_all(heard.number);
  }
  Outcome outcome = ranks.outcome();
  outcome.interrupted = interrupted;
  if (outcome.spoke) say(ranks.memory_hint());  // else it is part of the outcome's line
  return outcome;
}

}  // namespace

bool needs_launcher(const LaunchOptions& options) {
  return options.nproc_per_node > 1 || options.nnodes > 1 || options.max_restarts > 0 ||
         names_rendezvous(options);
}

bool names_rendezvous(const LaunchOptions& options) { return !options.rdzv_endpoint.empty(); }

Result<int> launch_ranks(const LaunchPlan& plan, char* const* argv) {
  OFSDP_RETURN_IF_ERROR(check(plan.options));
  const SignalQueue signals;
  const std::unique_ptr<NodeLink> link = make_node_link(plan, signals);
  OFSDP_ASSIGN_OR_RETURN(Turn turn, link->next(nullptr));
  bool first = false;  // this host has rank 0, which names the files
  while (turn.start) {
    first = turn.assignment.node == 0;
    say(turn.line);
    say(turn.notice);
    OFSDP_ASSIGN_OR_RETURN(const Outcome outcome,
                           run_ranks(turn.assignment, plan, argv, signals, *link));
    OFSDP_ASSIGN_OR_RETURN(turn, link->next(&outcome));
  }
  if (turn.status == 1 && first) tidy_after_failure(plan.output, plan.checkpoint_dir);
  if (turn.line.empty()) return turn.status;
  return Status(turn.status == 2 ? ErrorKind::kInput : ErrorKind::kFault, turn.line);
}

}  // namespace ofsdp::cli
