#include "runtime/cli/launch/launcher.h"

#include <cstdio>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "importer/write/output_files.h"
#include "runtime/cli/launch/host_ranks.h"

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
  if (!line.empty()) std::fprintf(stderr, "fsdp-run: %s\n", line.c_str());
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
  return outcome;
}

// What ranks that were killed have left beside their files; opening the places again removes it.
// Where that fails there is nothing to add to what was said about the run.
void remove_leftovers(const LaunchPlan& plan) {
  if (!plan.output.empty()) (void)check_output_path(plan.output);
  if (is_folder(plan.checkpoint_dir)) (void)CheckpointStore::open(plan.checkpoint_dir, {});
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
  const std::unique_ptr<NodeLink> link =
      names_rendezvous(plan.options) ? make_rendezvous_link(plan, signals) : make_lone_link(plan);
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
  if (turn.status == 1 && first) remove_leftovers(plan);
  if (turn.line.empty()) return turn.status;
  return Status(turn.status == 2 ? ErrorKind::kInput : ErrorKind::kFault, turn.line);
}

}  // namespace ofsdp::cli
