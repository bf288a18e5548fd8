// RankIdentity: this process's rank, read from the environment that the launcher set: fsdp-run or
// one like torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), mpirun from Open MPI
// or MPICH, or Slurm's srun.
//
// Ranks are on several hosts if LOCAL_WORLD_SIZE is below WORLD_SIZE, if GROUP_WORLD_SIZE says so
// (torchrun), or by the launcher's count of ranks on this host or Slurm's count of nodes.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "fsdp/comm/store/job_secret.h"
#include "kernels/base/cgroup.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

struct RankIdentity {
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  std::string rendezvous = {};  // equal on all ranks of a run, and unique to it for this user
  std::string started_by = {};  // "fsdp-run", "torchrun", "Open MPI", "MPICH", "Slurm"

  int local_world = 0;              // ranks on this host; 0 if unknown: all of them
  int nodes = 0;                    // hosts; 0 if unknown
  int node_rank = -1;               // this host; -1 if unknown: ranks compare their machines
  std::string master_address = {};  // of rank 0, reachable from every host; empty if unknown
  int master_port = 0;
  std::string run_id = {};  // with the master's address and port, equal on all hosts of a run
  JobSecret secret = {};    // of a run on several hosts

  // Carries bytes between hosts: "tcp", or the launcher's MPI library, "openmpi" or "mpich".
  // OFSDP_ENGINE overrides it.
  std::string engine = "tcp";

  bool several_hosts() const { return nodes > 1 || (local_world > 0 && local_world < world); }
  int hosts() const { return nodes > 0 ? nodes : (world + ranks_here() - 1) / ranks_here(); }
  int ranks_here() const {
    return local_world > 0 ? local_world : nodes > 1 ? (world + nodes - 1) / nodes : world;
  }
};

using EnvironmentLookup = std::function<const char*(const char* name)>;  // as std::getenv

// Returns no value if this process is no rank. An empty variable counts as not set. Returns kInput
// with the variable, the expected value and the found one.
Result<std::optional<RankIdentity>> rank_identity_from_environment(
    const EnvironmentLookup& lookup = {});

// Returns how many cores one of `local_world` ranks on this host may use, by affinity and by a
// share of the cgroup's CPU quota, at least 1: the default of --threads.
int cores_per_rank(int local_world, const Cgroup& cgroup = Cgroup());

// Returns the name of this host for messages, "?" if the system does not say.
std::string host_name();

}  // namespace ofsdp::fsdp
