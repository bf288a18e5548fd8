// RankIdentity: this process's rank, as told by whoever started it: fsdp-run itself or a
// torchrun-like launcher (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), Open MPI's or
// MPICH's mpirun, Slurm's srun.
//
// Ranks on several hosts: told by LOCAL_WORLD_SIZE below WORLD_SIZE or by GROUP_WORLD_SIZE
// (torchrun), by the launcher's count of ranks on this host, or by Slurm's number of nodes.
//
// Threads: any, as long as nobody changes the environment. Errors: kInput naming the variable, what
// was expected and what was found.
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
  std::string rendezvous =
      {};  // the same for all ranks of a run, and for no other run of this user
  std::string started_by = {};  // "fsdp-run", "torchrun", "Open MPI", "MPICH", "Slurm"

  int local_world = 0;              // ranks on this host; 0: not said, all of them
  int nodes = 0;                    // hosts; 0: not said
  int node_rank = -1;               // which host this is; -1: not said, the machine's name decides
  std::string master_address = {};  // where rank 0 can be reached from every host; empty: not said
  int master_port = 0;
  std::string run_id =
      {};  // the same on all hosts that belong to one run, besides that meeting point
  JobSecret secret = {};  // of a run on several hosts

  // Carries bytes between hosts: "tcp", or the MPI library of the launcher, "openmpi" or "mpich".
  // OFSDP_ENGINE says otherwise.
  std::string engine = "tcp";

  bool several_hosts() const { return nodes > 1 || (local_world > 0 && local_world < world); }
  int hosts() const { return nodes > 0 ? nodes : (world + ranks_here() - 1) / ranks_here(); }
  int ranks_here() const {
    return local_world > 0 ? local_world : nodes > 1 ? (world + nodes - 1) / nodes : world;
  }
};

using EnvironmentLookup = std::function<const char*(const char* name)>;  // as std::getenv

// No value: nobody said that this process is a rank. An empty variable counts as not set.
Result<std::optional<RankIdentity>> rank_identity_from_environment(
    const EnvironmentLookup& lookup = {});

// The cores that one of `local_world` ranks of this host may use, by its affinity and its share of
// the cgroup's CPU quota, at least 1: the default of --threads.
int cores_of_rank(int local_world, const Cgroup& cgroup = Cgroup());

}  // namespace ofsdp::fsdp
