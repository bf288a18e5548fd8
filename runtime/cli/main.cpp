// fsdp-run. Reads from top to bottom: command line, ranks, run, exit status.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "fsdp/local_communicator.h"
#include "fsdp/rank_identity.h"
#include "kernels/core/registry.h"
#include "kernels/cpu/parallel.h"
#include "runtime/cli/command_line.h"
#include "runtime/cli/launcher.h"
#include "runtime/cli/operator_table.h"
#include "runtime/export.h"
#include "runtime/report/absent_ranks.h"
#include "runtime/session.h"

namespace ofsdp {
namespace {

int exit_status(const Status& status) { return status.kind() == ErrorKind::kInput ? 2 : 1; }

int report(const Status& status) {
  std::fprintf(stderr, "fsdp-run: %s\n", status.message().c_str());
  return exit_status(status);
}

// The first rank to fail prints; the others end with its status.
int report_rank(const Status& status, Communicator& communicator) {
  if (status.kind() != ErrorKind::kPeer && communicator.fail(status)) return report(status);
  const int agreed = communicator.exit_status();
  return agreed != 0 ? agreed : 1;
}

int run_rank(const Options& options, const RankIdentity& identity) {
  set_pool_threads(
      static_cast<int>(options.launch.threads.value_or(cores_of_rank(identity.world))));
  MemoryLedger ledger;  // outlives the communicator, whose segments it counts
  const auto timeout = static_cast<int64_t>(std::ceil(options.launch.timeout_seconds));
  auto communicator = connect_local(identity, std::chrono::seconds(timeout));
  if (!communicator.ok()) {
    const Status status = std::move(communicator).status();
    return status.kind() == ErrorKind::kPeer ? 1 : report(status);
  }
  const Registry registry = make_registry();
  const Status status = run_session(options, registry, **communicator, ledger);
  if (!status.ok()) return report_rank(status, **communicator);
  (*communicator)->leave();
  return 0;
}

// Ranks of which only this one is there.
int run_plan(const Options& options, const std::optional<RankIdentity>& identity) {
  const int64_t here_now = identity ? identity->world : options.launch.nproc_per_node;
  const auto world = static_cast<int>(options.report.world.value_or(here_now));
  const int here = options.report.topology.empty() ? world : 1;
  set_pool_threads(static_cast<int>(options.launch.threads.value_or(cores_of_rank(here))));
  MemoryLedger ledger;
  const auto communicator = make_absent_ranks(world);
  const Registry registry = make_registry();
  const Status status = run_session(options, registry, *communicator, ledger);
  return status.ok() ? 0 : report(status);
}

// libgomp reads OMP_WAIT_POLICY before main, and threads that spin between kernels take the cores
// of whoever shares the machine (docs/threads.md): so the program starts itself again, once.
void wait_passively(char** argv) {
  if (getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 0);
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) execv(program.c_str(), argv);  // that this fails is no reason not to run
}

int run(int argc, char** argv) {
  const auto identity = rank_identity_from_environment();
  auto parsed = parse_command_line(argc, argv);
  const bool first = !identity.ok() || !*identity || (**identity).rank == 0;
  if (!parsed.ok()) return first ? report(parsed.error()) : exit_status(parsed.error());
  if (!identity.ok()) return report(identity.error());
  if (parsed->help_text) {
    if (first) std::fputs(parsed->help_text->c_str(), stdout);
    return 0;
  }
  const Options& options = parsed->options;
  if (options.command == Command::kOps) {
    std::fputs(operator_table(make_registry(), options.json).c_str(), stdout);
    return 0;
  }
  if (options.command == Command::kExport) {
    const Status status = export_checkpoint(options, make_registry());
    return status.ok() ? 0 : report(status);
  }
  if (options.command == Command::kPlan && first) return run_plan(options, *identity);
  if (options.command == Command::kPlan) return 0;
  if (*identity) return run_rank(options, **identity);
  if (options.launch.nproc_per_node == 1) return run_rank(options, RankIdentity{});
  auto status = launch_ranks(static_cast<int>(options.launch.nproc_per_node), argv);
  return status.ok() ? *status : report(status.error());
}

}  // namespace
}  // namespace ofsdp

int main(int argc, char** argv) {
  ofsdp::wait_passively(argv);
  std::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more does not end the run
  return ofsdp::run(argc, argv);
}
