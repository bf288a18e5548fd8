// HostMap: which rank runs on which host. Hosts are numbered by their first rank; a rank's place is
// its index among the ranks of its host. The same on every rank of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/plan/rank_group.h"

namespace ofsdp::fsdp {

struct HostMap {
  int rank = 0;                         // this one
  std::vector<std::vector<int>> hosts;  // ranks of each, ascending
  std::vector<int> host_of;             // by rank
  std::vector<int> place_of;            // by rank
  std::vector<std::string> names;       // by rank: its host's, for messages

  // `host_of`: by rank, in any numbering.
  static HostMap make(int rank, const std::vector<int>& host_of, std::vector<std::string> names);

  int world() const { return static_cast<int>(host_of.size()); }
  int host() const { return host_of[static_cast<size_t>(rank)]; }
  int place() const { return place_of[static_cast<size_t>(rank)]; }
  const std::vector<int>& here() const { return hosts[static_cast<size_t>(host())]; }
  bool is_here(int other) const { return host_of[static_cast<size_t>(other)] == host(); }
  // The rank of `host` that answers what `asker` wants from there.
  int server(int host, int asker) const;
};

// A group as one of its ranks sees it.
struct GroupView {
  struct Host {
    int host = 0;
    int server = 0;            // that answers this rank; of this host: none, 0
    std::vector<int> members;  // of the group, in rank order
  };
  RankGroup group;
  std::vector<int> here;    // members on this host, in rank order
  size_t own = 0;           // of `here`: this rank
  std::vector<Host> hosts;  // with members, in host order, this one included
  std::vector<int> remote;  // members elsewhere, host by host
  int others = 0;           // hosts with members but this one
  uint64_t gathers = 0;     // that the members on this host have made together

  // The members on this host, this rank first. So ranks begin with different peers, and do not all
  // read the same memory at once.
  int peer(size_t k) const { return here[(own + k) % here.size()]; }

  static GroupView make(const HostMap& map, const RankGroup& group);
};

}  // namespace ofsdp::fsdp
