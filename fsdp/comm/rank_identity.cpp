#include "fsdp/comm/rank_identity.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::fsdp {
namespace {

// The variables that a launcher sets, or null.
struct Source {
  const char* started_by;
  const char* rank;
  const char* world;
  const char* local_rank;
  const char* local_world = nullptr;
  const char* hosts = nullptr;
  const char* host = nullptr;
};

constexpr Source kTorchrun{
    "torchrun",         "RANK",      "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "GROUP_RANK"};
constexpr Source kOpenMpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Source kMpich{"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Source kSlurm{"Slurm", "SLURM_PROCID",         "SLURM_NTASKS", "SLURM_LOCALID",
                        nullptr, "SLURM_STEP_NUM_NODES", "SLURM_NODEID"};

class Environment {
 public:
  explicit Environment(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  std::string text(const char* name) const {
    const char* value = name == nullptr ? nullptr : lookup_ ? lookup_(name) : std::getenv(name);
    return value == nullptr ? "" : value;
  }

  bool has(const char* name) const { return !text(name).empty(); }

  // Returns a whole number from `least` to `most`, or `otherwise` if the variable is not set.
  Result<int> number(const char* name, int least, int most, int otherwise) const {
    const std::string found = text(name);
    if (found.empty()) return otherwise;
    int value = 0;
    const auto [end, error] = std::from_chars(found.data(), found.data() + found.size(), value);
    const bool whole = error == std::errc() && end == found.data() + found.size();
    if (whole && value >= least && value <= most) return value;
    return input_error(
        "{}: expected a whole number of {}, found '{}'", name,
        most == INT_MAX ? format_text("{} or more", least) : format_text("{} to {}", least, most),
        found);
  }

 private:
  const EnvironmentLookup& lookup_;
};

Status require(const Environment& environment, const char* name, const char* because) {
  if (environment.has(name)) return {};
  return input_error("{} is not set, expected one beside {}={}", name, because,
                     environment.text(because));
}

// With any launcher a script may set GROUP_RANK, or NODE_RANK, to number the hosts.
Status read_hosts(const Environment& environment, const Source& source, RankIdentity& identity) {
  const char* const nodes = environment.has("GROUP_WORLD_SIZE") ? "GROUP_WORLD_SIZE" : source.hosts;
  OFSDP_ASSIGN_OR_RETURN(identity.nodes, environment.number(nodes, 1, identity.world, 0));
  const char* host = source.host;
  for (const char* name : {"NODE_RANK", "GROUP_RANK"}) {
    if (environment.has(name)) host = name;
  }
  const int most = identity.nodes > 0 ? identity.nodes - 1 : identity.world - 1;
  OFSDP_ASSIGN_OR_RETURN(identity.node_rank, environment.number(host, 0, most, -1));
  OFSDP_ASSIGN_OR_RETURN(identity.local_world,
                         environment.number(source.local_world, 1, INT_MAX, 0));
  if (identity.local_world <= identity.world) return {};
  return input_error("{}={}: expected at most {}={}", source.local_world, identity.local_world,
                     source.world, identity.world);
}

Result<RankIdentity> read(const Environment& environment, const Source& source) {
  OFSDP_RETURN_IF_ERROR(require(environment, source.world, source.rank));
  OFSDP_RETURN_IF_ERROR(require(environment, source.rank, source.world));
  RankIdentity identity;
  identity.started_by = source.started_by;
  OFSDP_ASSIGN_OR_RETURN(identity.world, environment.number(source.world, 1, INT_MAX, 1));
  OFSDP_ASSIGN_OR_RETURN(identity.rank, environment.number(source.rank, 0, INT_MAX, 0));
  OFSDP_REJECT_IF(identity.rank >= identity.world, "{}={}: expected 0 to {}, for {} is {}",
                  source.rank, identity.rank, identity.world - 1, source.world, identity.world);
  OFSDP_RETURN_IF_ERROR(read_hosts(environment, source, identity));
  const int otherwise = identity.several_hosts() ? 0 : identity.rank;
  OFSDP_ASSIGN_OR_RETURN(
      identity.local_rank,
      environment.number(source.local_rank, 0, identity.ranks_here() - 1, otherwise));
  return identity;
}

// Both mpirun and a script may set ranks; they must agree.
Status check_agreement(const RankIdentity& a, const RankIdentity& b) {
  if (a.rank == b.rank && a.world == b.world) return {};
  return input_error("the environment of {} says rank {} of {}, that of {} says rank {} of {}",
                     a.started_by, a.rank, a.world, b.started_by, b.rank, b.world);
}

std::string run_id(const Environment& environment) {
  std::string id;
  for (const char* more : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    if (environment.has(more)) id += format_text("/{}", environment.text(more));
  }
  return id;
}

// If torchrun's agent keeps the port for a store, ranks use the next port.
bool agent_holds_port(const Environment& environment) {
  return environment.text("TORCHELASTIC_USE_AGENT_STORE") == "True" &&
         !environment.has("OFSDP_RENDEZVOUS");
}

Status read_master(const Environment& environment, RankIdentity& identity) {
  identity.run_id = run_id(environment);
  if (!environment.has("MASTER_ADDR") && !environment.has("MASTER_PORT")) return {};
  OFSDP_RETURN_IF_ERROR(require(environment, "MASTER_ADDR", "MASTER_PORT"));
  OFSDP_RETURN_IF_ERROR(require(environment, "MASTER_PORT", "MASTER_ADDR"));
  identity.master_address = environment.text("MASTER_ADDR");
  OFSDP_ASSIGN_OR_RETURN(identity.master_port, environment.number("MASTER_PORT", 1, 65535, 0));
  if (agent_holds_port(environment) && identity.master_port < 65535) ++identity.master_port;
  return {};
}

Status read_engine(const Environment& environment, RankIdentity& identity) {
  if (identity.started_by == kOpenMpi.started_by) identity.engine = "openmpi";
  if (identity.started_by == kMpich.started_by) identity.engine = "mpich";
  const std::string wanted = environment.text("OFSDP_ENGINE");
  if (wanted.empty()) return {};
  OFSDP_REJECT_IF(wanted != "tcp" && wanted != "openmpi" && wanted != "mpich",
                  "OFSDP_ENGINE: expected tcp, openmpi or mpich, found '{}'", wanted);
  identity.engine = wanted;
  return {};
}

// Returns the first node in a list such as "node[003-010,12],login1": Slurm runs rank 0 there.
std::string first_node(const std::string& list) {
  const std::string head = list.substr(0, list.find_first_of("[,"));
  if (head.size() == list.size() || list[head.size()] == ',') return head;
  const size_t begin = head.size() + 1;
  return head + list.substr(begin, list.find_first_of(",-]", begin) - begin);
}

// If MASTER_ADDR is not set, takes the first node from Slurm and derives a port from the job's
// number.
Status read_slurm_master(const Environment& environment, RankIdentity& identity) {
  if (!identity.master_address.empty()) return {};
  const char* const list =
      environment.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  identity.master_address = first_node(environment.text(list));
  OFSDP_ASSIGN_OR_RETURN(const int job, environment.number("SLURM_JOB_ID", 0, INT_MAX, 0));
  OFSDP_ASSIGN_OR_RETURN(const int step, environment.number("SLURM_STEP_ID", 0, INT_MAX, 0));
  identity.master_port = 20000 + (job % 1000) * 10 + step % 10;
  return {};
}

Result<std::string> torchrun_rendezvous(const Environment& environment) {
  OFSDP_RETURN_IF_ERROR(require(environment, "MASTER_ADDR", "RANK"));
  OFSDP_RETURN_IF_ERROR(require(environment, "MASTER_PORT", "RANK"));
  OFSDP_ASSIGN_OR_RETURN(const int port, environment.number("MASTER_PORT", 1, 65535, 0));
  return format_text("{}:{}{}", environment.text("MASTER_ADDR"), port, run_id(environment));
}

struct Ancestor {
  std::string name;
  int parent = 0;
};

Ancestor process(int pid) {
  std::ifstream file(format_text("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);  // "pid (name) state parent ..."; the name may contain any bytes
  const size_t open = line.find('('), close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 4 > line.size()) return {};
  return {line.substr(open + 1, close - open - 1), std::atoi(line.c_str() + close + 4)};
}

// Returns the process that started all ranks on this host, since MPICH gives ranks no job name.
// Searches for MPICH's proxy by name, since a wrapper script may be in between; else takes the
// parent.
std::string launching_process() {
  for (int pid = getppid(); pid > 1;) {
    const Ancestor here = process(pid);
    if (here.name.starts_with("hydra_pmi_proxy")) return format_text("process {}", pid);
    pid = here.parent;
  }
  return format_text("process {}", getppid());
}

std::string job_rendezvous(const Environment& environment, std::string_view started_by) {
  const std::vector<const char*> names =
      started_by == kOpenMpi.started_by
          ? std::vector<const char*>{"PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri",
                                     "OMPI_MCA_ess_base_jobid"}
          : std::vector<const char*>{"PMI_JOBID", "PMI_PORT"};
  for (const char* name : names) {
    if (environment.has(name)) return format_text("{} {}", started_by, environment.text(name));
  }
  return format_text("{} {}", started_by, launching_process());
}

Result<std::string> rendezvous_name(const Environment& environment, std::string_view started_by) {
  if (started_by == kTorchrun.started_by) return torchrun_rendezvous(environment);
  if (started_by == kSlurm.started_by) {
    return format_text("Slurm {}.{}", environment.text("SLURM_JOB_ID"),
                       environment.text("SLURM_STEP_ID"));
  }
  return job_rendezvous(environment, started_by);
}

bool is_present(const Environment& environment, const Source& source) {
  if (source.started_by == kSlurm.started_by) {  // sbatch and salloc do not start ranks
    return environment.has("SLURM_STEP_ID") && environment.has("SLURM_NTASKS") &&
           environment.text("SLURM_NTASKS") != "1";
  }
  return environment.has(source.rank) || environment.has(source.world);
}

// If several launchers have set variables, prefers one with several ranks: a one-process launcher
// may have started another launcher.
Result<std::optional<RankIdentity>> choose(const Environment& environment) {
  std::optional<RankIdentity> chosen;
  for (const Source& source : {kTorchrun, kOpenMpi, kMpich, kSlurm}) {
    if (!is_present(environment, source)) continue;
    OFSDP_ASSIGN_OR_RETURN(RankIdentity found, read(environment, source));
    if (chosen && chosen->world > 1 && found.world > 1) {
      OFSDP_RETURN_IF_ERROR(check_agreement(*chosen, found));
    } else if (!chosen || chosen->world == 1) {
      chosen = std::move(found);
    }
  }
  return chosen;
}

}  // namespace

Result<std::optional<RankIdentity>> rank_identity_from_environment(
    const EnvironmentLookup& lookup) {
  const Environment environment(lookup);
  std::optional<RankIdentity> identity;
  if (environment.has("OFSDP_RENDEZVOUS")) {  // set by our own launcher
    OFSDP_ASSIGN_OR_RETURN(identity, read(environment, kTorchrun));
    identity->started_by = "fsdp-run";
    identity->rendezvous = environment.text("OFSDP_RENDEZVOUS");
  } else {
    OFSDP_ASSIGN_OR_RETURN(identity, choose(environment));
    if (!identity || identity->world == 1) return identity;
    OFSDP_ASSIGN_OR_RETURN(identity->rendezvous,
                           rendezvous_name(environment, identity->started_by));
  }
  if (!identity->several_hosts()) return identity;
  OFSDP_RETURN_IF_ERROR(read_master(environment, *identity));
  OFSDP_RETURN_IF_ERROR(read_engine(environment, *identity));
  OFSDP_ASSIGN_OR_RETURN(identity->secret, JobSecret::from_environment());
  if (identity->started_by == kSlurm.started_by) {
    OFSDP_RETURN_IF_ERROR(read_slurm_master(environment, *identity));
  }
  return identity;
}

int cores_per_rank(int local_world, const Cgroup& cgroup) {
  int cores = 1;
  cpu_set_t mine;
  // The launcher has pinned this rank and says how many cores each rank has.
  if (const char* share = std::getenv("OFSDP_RANK_CORES"); share != nullptr) {
    cores = std::atoi(share);
  } else if (sched_getaffinity(0, sizeof mine, &mine) == 0) {
    cores = CPU_COUNT(&mine) / local_world;
  }
  // With more threads than the quota allows, the kernel would stop them amid a step.
  if (const auto quota = cgroup.cores()) {
    cores = static_cast<int>(std::min<double>(cores, std::ceil(*quota / local_world)));
  }
  return std::max(1, cores);
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "?";
}

}  // namespace ofsdp::fsdp
