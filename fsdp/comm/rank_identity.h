// RankIdentity: this process's rank in the run, read from the environment variables that the
// launcher set. Launchers are fsdp-run, torchrun and others with its variables (RANK, WORLD_SIZE,
// LOCAL_RANK, MASTER_ADDR, MASTER_PORT), mpirun from Open MPI or MPICH, and Slurm's srun.
//
// The program reads the identity once at its start and passes it to connect_ranks, which returns
// the Communicator through which the rank talks to the others until the run ends.
//
// The run has several hosts if the launcher says that it has several nodes (GROUP_WORLD_SIZE,
// Slurm's node count), or that fewer ranks run on this host than in the whole run
// (LOCAL_WORLD_SIZE, Open MPI's and MPICH's variables).
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
  // The name under which ranks on one host find each other: the same on all of them, and different
  // from the names of this user's other runs.
  std::string rendezvous = {};
  std::string started_by = {};  // "fsdp-run", "torchrun", "Open MPI", "MPICH", "Slurm"

  int local_world = 0;  // ranks on this host; 0: unknown, and then all ranks are on it
  int nodes = 0;        // hosts; 0: unknown
  int node_rank = -1;  // this host's number; -1: unknown, and then ranks find out who shares a host

  // For several hosts: rank 0 listens at master_address and master_port, and the others connect
  // there. Each first proves that it knows `secret`; then its `run_id` must equal rank 0's.
  std::string master_address = {};  // empty: unknown
  int master_port = 0;
  std::string run_id = {};
  JobSecret secret = {};  // empty: anybody may connect
  // The transport between hosts: "tcp", or the launcher's MPI library, "openmpi" or "mpich".
  // OFSDP_ENGINE overrides the launcher.
  std::string engine = "tcp";

  bool several_hosts() const { return nodes > 1 || (local_world > 0 && local_world < world); }
  int hosts() const { return nodes > 0 ? nodes : (world + ranks_here() - 1) / ranks_here(); }
  int ranks_here() const {
    return local_world > 0 ? local_world : nodes > 1 ? (world + nodes - 1) / nodes : world;
  }
};

using EnvironmentLookup = std::function<const char*(const char* name)>;  // as std::getenv

// Returns no value if no launcher started this process as a rank. An empty variable counts as
// unset. If a variable is wrong, returns kInput with its name, the expected and the found value.
// `lookup`: for tests; empty: std::getenv.
Result<std::optional<RankIdentity>> rank_identity_from_environment(
    const EnvironmentLookup& lookup = {});

// Returns how many cores each of `local_world` ranks on this host may use, at least 1: an equal
// part of the cores that the process may run on, but no more than an equal part of the cgroup's CPU
// quota. It is the default of --threads.
int cores_per_rank(int local_world, const Cgroup& cgroup = Cgroup());

// Returns this host's name for messages; "?" if the system has none.
std::string host_name();

// Connects this rank with the others and returns the run's communicator, which the caller owns. All
// ranks must call it. `timeout`: how long one rank may wait for another, here and in every
// collective.
//
//   one rank        "self": collectives do nothing
//   one host        "local": ranks share memory segments, and a control page with counters by which
//                   they tell each other how far they are. They read others' data in place
//   several hosts   the same among the ranks on each host, with TCP or MPI between hosts. Each rank
//                   has a HostLink, a thread that transfers data while the rank computes: a
//                   reduction's transfers begin when the rank calls Communicator::post
//
// Between hosts, a gather brings each byte to a host once, and in a reduction each host sends one
// sum (host_collectives.h). These are the hierarchical collectives of Thakur, Rabenseifner, Gropp,
// "Optimization of Collective Communication Operations in MPICH", 2005, section on SMP clusters,
// except that a rank requests data when it has room, instead of following a fixed order of
// messages.
//
// Returns kInput if ranks on several hosts have no address to meet at, or if ranks contradict
// each other; kFault if ranks do not come in time; kPeer on the ranks that need not print the
// reason (host_rendezvous.h, rendezvous.h). All ranks give up together.
//
// Before the communicator is destroyed, call leave(), or fail() after an error. Otherwise a thread
// in every other rank of this host sees it as dead, and all other ranks fail. With several
// hosts leave() waits until every rank leaves, at most `timeout`, since others may still read this
// rank's shards.
Result<std::unique_ptr<Communicator>> connect_ranks(const RankIdentity& started,
                                                    std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
