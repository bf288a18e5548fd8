// Which rank this process is, as told by whoever started it: fsdp-run itself or a torchrun-like
// launcher (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), Open MPI's or MPICH's mpirun,
// Slurm's srun.
//
// Ownership: values. Threads: any, as long as nobody changes the environment. Errors: kInput naming
// the variable, what was expected and what was found; also for ranks on several hosts, which are
// not built.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "kernels/core/status.h"

namespace ofsdp {

struct RankIdentity {
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  std::string rendezvous;  // the same for all ranks of a run, and for no other run of this user
  std::string started_by;  // "fsdp-run", "torchrun", "Open MPI", "MPICH", "Slurm"
};

using EnvironmentLookup = std::function<const char*(const char* name)>;  // as std::getenv

// No value: nobody said that this process is a rank. An empty variable counts as not set.
Result<std::optional<RankIdentity>> rank_identity_from_environment(
    const EnvironmentLookup& lookup = {});

// The cores that one of `local_world` ranks of this host may use, at least 1: the default of
// --threads.
int cores_of_rank(int local_world);

}  // namespace ofsdp
