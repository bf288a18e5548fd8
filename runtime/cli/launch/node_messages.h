// The messages of launchers at the rendezvous: keys of a Store (fsdp/comm/store/store.h), one
// Store between the launcher of each host (G) and the coordinator (C), which runs in the launcher
// that hosts the rendezvous.
//
//   both   as in fsdp/comm/store/challenge.h, before anything else
//   G > C  hello     NodeHello: magic, version, job and what the host offers
//   C > G  welcome   it is in, and waits
//   C > G  refused   a Refusal: it is not
//   C > G  turn      a Turn: an assignment to start, or the end of the run
//   G > C  failing   a rank has failed; the others of the host are given a few seconds
//   C > G  stop      a StopOrder: end the ranks of this host
//   G > C  ended     an Outcome: no rank of this host is left; and a port that is free now
//   both   beat      nothing, but in time
//
// Errors: no value for what is no message of ours.
#pragma once

#include <string>

#include "fsdp/comm/store/store.h"

namespace ofsdp::cli {

inline constexpr int kRendezvousVersion = 3;
inline constexpr const char* kLauncherPurpose = "meeting of launchers";

// The offer of one host's launcher.
struct NodeHello {
  int version = kRendezvousVersion;
  std::string job = {};  // --rdzv-id
  int node_rank = -1;    // -1: any
  int nnodes = 1;
  int nproc = 1;
  int free_port = 0;
  std::string host = {};  // its name
  bool own = false;       // of the launcher that the coordinator runs in
};

// The ranks that a host starts.
struct Assignment {
  int node = 0;              // number of this host
  int nodes = 1;             // hosts of this attempt
  int first_rank = 0;        // of this host's ranks, which are numbered one after the other
  int world = 1;             // ranks of all hosts
  int first_world = 1;       // of the first attempt
  int restart = 0;           // attempts before this one
  bool from_latest = false;  // the run has saved a checkpoint that this attempt goes on from
  std::string run_id = {};   // the same for all ranks of a run, and for no other run
  std::string master_address = "127.0.0.1";  // of the host of rank 0, as the others reach it
  int master_port = 29500;                   // free there a moment ago
};

// How the ranks of a host ended.
struct Outcome {
  int status = 0;            // 0 done, 1 failed, 2 the input is wrong
  bool spoke = false;        // a rank has said why, to the launcher (`line`) or to the user
  bool interrupted = false;  // SIGINT or SIGTERM came
  std::string line = {};  // else what the launcher knows, for when no rank of any host has spoken
  int free_port = 29500;  // for the next attempt
};

// The next thing that a launcher does.
struct Turn {
  bool start = false;          // else the run has ended with `status`
  Assignment assignment = {};  // of a start
  int status = 0;              // of an end
  std::string line = {};       // why the attempt before failed, when no rank has said so
  std::string notice = {};     // of a start: what this launcher prints for all
};

// Why a launcher may not join, and whether to try again.
struct Refusal {
  std::string why = {};
  bool again = false;
};

// A rank of another host failed, or a host is gone: this attempt ends.
struct StopOrder {
  int restart = 0;  // the attempt's number
};

void list_fields(StoreFields& fields, Refusal& refusal);
void list_fields(StoreFields& fields, StopOrder& stop);
void list_fields(StoreFields& fields, Outcome& outcome);
void list_fields(StoreFields& fields, Turn& turn);

Json hello_value(const NodeHello& hello);
// One of another version has its version alone.
std::optional<NodeHello> read_hello(const Json& value);

}  // namespace ofsdp::cli
