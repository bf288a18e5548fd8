// Topology: hosts, the ranks on each, and the links between them, as an alpha-beta model: a message
// of b bytes takes alpha + b / beta. Read from a YAML file:
//
//   hosts: 4
//   ranks_per_host: 8
//   inside:  {alpha_us: 3.4, beta_gbs: 370}   # between two ranks of a host, GB/s of 1e9 bytes
//   between: {alpha_us: 14, beta_gbs: 50}     # between two hosts, for one rank
//   compute_factor: 40                        # how many times faster than this machine; 1
//   overlap: on                               # communication during computation; on
//   contention: 1.3                           # how much slower computation is meanwhile; 1
//
// Collectives are rings: n - 1 messages one after the other, of which hosts - 1 cross hosts, and
// (n - 1)/n of the bytes through the slowest link on the way; an all-reduce is two of them. Ranks
// are numbered host by host. Follows Thakur, Rabenseifner, Gropp, "Optimization of Collective
// Communication Operations in MPICH", 2005.
//
// Errors: kInput from read_topology, naming file and key.
#pragma once

#include <string>

#include "fsdp/plan/unit.h"
#include "kernels/base/status.h"

namespace ofsdp::runtime {

struct Link {
  double alpha = 0;  // seconds
  double beta = 1;   // bytes a second
};

struct Topology {
  int hosts = 1;
  int ranks_per_host = 1;
  Link inside, between;
  double compute_factor = 1;
  bool overlap = true;
  double contention = 1;

  int world() const { return hosts * ranks_per_host; }
  // Hosts that have a rank of the group.
  int hosts_of(const RankGroup& group) const;
  // Seconds until every rank of the group has all `bytes` that together they have parts of; a
  // reduce-scatter takes as long.
  double all_gather(const RankGroup& group, double bytes) const;
  double all_reduce(const RankGroup& group, double bytes) const {
    return 2 * all_gather(group, bytes);
  }
};

Result<Topology> read_topology(const std::string& path);
Result<Topology> parse_topology(const std::string& yaml, const std::string& origin);

}  // namespace ofsdp::runtime
