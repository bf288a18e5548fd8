// HostMap: which rank runs on which host. Hosts are numbered by their first rank; a rank's place is
// its index among the ranks of its host. The same on every rank of a run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
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
  static HostMap make(int rank, const std::vector<int>& host_of, std::vector<std::string> names) {
    HostMap map;
    map.rank = rank;
    map.names = std::move(names);
    std::map<int, int> numbered;
    for (size_t r = 0; r < host_of.size(); ++r) {
      const auto [found, first] = numbered.emplace(host_of[r], static_cast<int>(map.hosts.size()));
      if (first) map.hosts.emplace_back();
      auto& ranks = map.hosts[static_cast<size_t>(found->second)];
      map.host_of.push_back(found->second);
      map.place_of.push_back(static_cast<int>(ranks.size()));
      ranks.push_back(static_cast<int>(r));
    }
    return map;
  }

  int world() const { return static_cast<int>(host_of.size()); }
  int host() const { return host_of[static_cast<size_t>(rank)]; }
  int place() const { return place_of[static_cast<size_t>(rank)]; }
  const std::vector<int>& here() const { return hosts[static_cast<size_t>(host())]; }
  bool is_here(int other) const { return host_of[static_cast<size_t>(other)] == host(); }
  // The rank of `host` that answers what `asker` wants from there.
  int server(int host, int asker) const {
    const auto& ranks = hosts[static_cast<size_t>(host)];
    return ranks[static_cast<size_t>(place_of[static_cast<size_t>(asker)]) % ranks.size()];
  }
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

  static GroupView make(const HostMap& map, const RankGroup& group) {
    GroupView view;
    view.group = group;
    std::vector<std::vector<int>> members(map.hosts.size());
    for (int i = 0; i < group.count; ++i) {
      const int rank = group.rank(i);
      members[static_cast<size_t>(map.host_of[static_cast<size_t>(rank)])].push_back(rank);
    }
    for (size_t h = 0; h < members.size(); ++h) {
      if (members[h].empty()) continue;
      const int host = static_cast<int>(h);
      if (host == map.host()) {
        view.here = members[h];
        const auto own = std::ranges::find(view.here, map.rank);
        view.own = static_cast<size_t>(own - view.here.begin());
        view.hosts.push_back({host, 0, std::move(members[h])});
        continue;
      }
      ++view.others;
      view.remote.insert(view.remote.end(), members[h].begin(), members[h].end());
      view.hosts.push_back({host, map.server(host, map.rank), std::move(members[h])});
    }
    return view;
  }
};

}  // namespace ofsdp::fsdp
