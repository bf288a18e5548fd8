// What launchers say to each other at the rendezvous, as JSON. G is the launcher of one host, C the
// coordinator, which runs in the launcher that hosts the rendezvous.
//
//   G > C  hello     magic, version, job and what the host offers
//   C > G  welcome   it is in, and waits
//   C > G  refused   it is not: why, and whether to try again
//   C > G  start     an Assignment
//   G > C  failing   a rank has failed; the others of the host are given a few seconds
//   C > G  stop      elsewhere: the same here
//   G > C  ended     an Outcome: no rank of this host is left; and a port that is free now
//   C > G  end       the run has ended: status, and a line for one of the launchers
//   both   beat      nothing, but in time
//
// Reading takes texts of at most kMostText bytes and numbers in their ranges; anything else is no
// message of ours. Ownership: values. Threads: any. Errors: no value.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "runtime/cli/launch/assignment.h"

namespace ofsdp::cli {

inline constexpr const char* kRendezvousMagic = "fsdp-run rendezvous";
inline constexpr int kRendezvousVersion = 1;
inline constexpr size_t kMostText = 2048;

struct Hello {
  int version = kRendezvousVersion;
  std::string job;     // --rdzv-id
  int node_rank = -1;  // -1: any
  int nnodes = 1;
  int nproc = 1;
  int free_port = 0;
  std::string host;  // its name
  bool own = false;  // of the launcher that the coordinator runs in
};

std::string kind_of(const nlohmann::json& message);

nlohmann::json to_json(const Hello& hello);
nlohmann::json to_json(const Outcome& outcome, int free_port);  // "ended"
nlohmann::json to_json(const Turn& turn);                       // "start" or "end"

std::optional<Hello> read_hello(const nlohmann::json& message);
std::optional<Outcome> read_outcome(const nlohmann::json& message);
std::optional<Turn> read_turn(const nlohmann::json& message);

// Of any message; `otherwise` where it is absent or of another kind.
std::string text_in(const nlohmann::json& message, const char* name);
bool flag_in(const nlohmann::json& message, const char* name);
int port_in(const nlohmann::json& message);  // its free_port

}  // namespace ofsdp::cli
