// RankIdentity: this process's rank, read from the environment that the launcher set: fsdp-run or
// one like torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), mpirun from Open MPI
// or MPICH, or Slurm's srun.
//
// connect_ranks makes the communicator from it. Ranks are on several hosts if LOCAL_WORLD_SIZE is
// below WORLD_SIZE, if GROUP_WORLD_SIZE says so (torchrun), or by the launcher's rank count on this
// host or Slurm's node count.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/store/doorkeeper.h"
#include "kernels/base/process.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

struct RankIdentity {
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  std::string rendezvous = {};  // equal on all ranks in a run, and unique to it for this user
  std::string started_by = {};  // "fsdp-run", "torchrun", "Open MPI", "MPICH", "Slurm"

  int local_world = 0;              // ranks on this host; 0 if unknown: all of them
  int nodes = 0;                    // hosts; 0 if unknown
  int node_rank = -1;               // this host; -1 if unknown: ranks compare their machines
  std::string master_address = {};  // rank 0's, reachable from every host; empty if unknown
  int master_port = 0;
  std::string run_id = {};  // with the master's address and port, equal on all hosts in a run
  JobSecret secret = {};    // shared by a run on several hosts

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

// Returns how many cores each of `local_world` ranks on this host may use, by affinity and by a
// share in the cgroup's CPU quota, at least 1: the default of --threads.
int cores_per_rank(int local_world, const Cgroup& cgroup = Cgroup());

// Returns this host's name for messages, "?" if the system does not say.
std::string host_name();

// connect_ranks makes a run's communicator. If it has one rank, that is `self`; otherwise it is one
// for several processes, on one host or on several.
//
// Ranks on one host share anonymous memory segments, and a control page with counters for signals.
// They read their peers' slots in place; nothing is copied unless the caller asks for a copy.
// Between hosts each rank has a HostLink with a thread, so that a reduction's transfers begin with
// the post and run while the rank computes.
//
// A gather brings every byte to a host once, and a reduction sends one sum out
// (host_collectives.h): the hierarchical collectives of Thakur, Rabenseifner, Gropp, "Optimization
// of Collective Communication Operations in MPICH", 2005, section on SMP clusters, with requests
// instead of a message schedule.
//
// A communicator has a thread that sleeps until a rank on the host dies. If it is destroyed without
// leave() or fail(), it counts as dead. With several hosts leave() waits for every rank to leave,
// at most the timeout, since others may still read this rank's shards.

// Connects this rank with the others: with processes on one host by shared memory, on several hosts
// also by TCP or MPI. A rank may be late by `timeout`, here and in every collective. Returns kInput
// if ranks on several hosts have no address to meet at, or the rendezvous errors
// (host_rendezvous.h, rendezvous.h).
Result<std::unique_ptr<Communicator>> connect_ranks(const RankIdentity& started,
                                                    std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
