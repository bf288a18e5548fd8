#include "fsdp/comm/hosts/host_map.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ofsdp::fsdp {

HostMap HostMap::make(int rank, const std::vector<int>& host_of, std::vector<std::string> names) {
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

int HostMap::server(int host, int asker) const {
  const auto& ranks = hosts[static_cast<size_t>(host)];
  return ranks[static_cast<size_t>(place_of[static_cast<size_t>(asker)]) % ranks.size()];
}

GroupView GroupView::make(const HostMap& map, const RankGroup& group) {
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

}  // namespace ofsdp::fsdp
