// The launchers that have come to the rendezvous, and the numbers of their hosts. A part of the
// coordinator.
//
// A launcher that says --node-rank has that seat; the others get the lowest free ones in order of
// arrival, and keep them from one attempt to the next. When hosts are gone the numbers close up.
//
// Ownership: owns the connections. Threads: the coordinator's. Errors: none; a seat that is taken is
// for the caller to refuse.
#pragma once

#include <functional>
#include <list>
#include <string>
#include <vector>

#include "runtime/cli/launch/node_channel.h"
#include "runtime/cli/launch/node_messages.h"

namespace ofsdp::cli {

struct NodeGuest {
  enum class State { kStranger, kWaiting, kRunning, kEnded };

  NodeChannel channel;
  std::string address;  // as seen from here
  State state = State::kStranger;
  Hello hello;
  int seat = -1;  // of its host among all
  int node = -1;  // number in the present attempt
  bool failing = false;
  int order = 0;    // among those that are failing
  Outcome outcome;  // of kEnded
};

// "node 1 (hostname)"
std::string name_of(const NodeGuest& guest);

class NodeTable {
 public:
  explicit NodeTable(int seats) : seats_(seats) {}

  std::list<NodeGuest>& guests() { return guests_; }
  int count(NodeGuest::State state) const;
  // The guest that holds this seat, or null.
  const NodeGuest* at(int seat) const;
  // Gives every waiting guest a seat, and says which of 0 .. seats-1 nobody has.
  std::vector<int> deal();
  // Numbers the waiting guests for an attempt, in the order of their seats.
  std::vector<NodeGuest*> number();

 private:
  int seats_;
  std::list<NodeGuest> guests_;  // in order of arrival; their addresses do not change
};

}  // namespace ofsdp::cli
