#include "runtime/cli/launch/node_table.h"

#include <algorithm>

namespace ofsdp::cli {

using State = NodeGuest::State;

std::string name_of(const NodeGuest& guest) {
  return format_text("node {} ({})", guest.node >= 0 ? guest.node : guest.seat, guest.hello.host);
}

int NodeTable::count(State state) const {
  return static_cast<int>(
      std::ranges::count_if(guests_, [&](const NodeGuest& g) { return g.state == state; }));
}

const NodeGuest* NodeTable::at(int seat) const {
  const auto found = std::ranges::find_if(guests_, [&](const NodeGuest& guest) {
    return guest.state != State::kStranger && guest.seat == seat;
  });
  return found == guests_.end() ? nullptr : &*found;
}

std::vector<int> NodeTable::deal() {
  std::vector<int> free;
  for (int seat = 0; seat < seats_; ++seat) {
    if (at(seat) == nullptr) free.push_back(seat);
  }
  for (NodeGuest& guest : guests_) {
    if (guest.state != State::kWaiting || guest.seat >= 0 || free.empty()) continue;
    guest.seat = free.front();
    free.erase(free.begin());
  }
  return free;
}

std::vector<NodeGuest*> NodeTable::number() {
  std::vector<NodeGuest*> nodes;
  for (NodeGuest& guest : guests_) {
    if (guest.state == State::kWaiting && guest.seat >= 0) nodes.push_back(&guest);
  }
  std::ranges::sort(nodes, {}, &NodeGuest::seat);
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i]->node = static_cast<int>(i);
  return nodes;
}

}  // namespace ofsdp::cli
