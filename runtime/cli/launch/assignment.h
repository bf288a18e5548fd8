// What launchers agree on: which ranks a host starts (Assignment), what became of them (Outcome),
// and what a launcher does next (Turn).
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <string>
#include <vector>

namespace ofsdp::cli {

struct Assignment {
  int node = 0;              // of this host, from 0
  int nodes = 1;             // hosts of this attempt
  int first_rank = 0;        // of this host's ranks, which are numbered one after the other
  int world = 1;             // ranks of all hosts
  int first_world = 1;       // of the first attempt
  int restart = 0;           // attempts before this one
  bool from_latest = false;  // the run has saved a checkpoint that this attempt goes on from
  std::string run_id;        // the same for all ranks of a run, and for no other run
  std::string master_address = "127.0.0.1";  // of the host of rank 0, as the others reach it
  int master_port = 29500;                   // free there a moment ago
};

struct Outcome {
  int status = 0;            // of this host's ranks: 0 done, 1 failed, 2 the input is wrong
  bool spoke = false;        // a rank has said why, to the launcher (`line`) or to the user
  bool interrupted = false;  // SIGINT or SIGTERM came
  std::string line;  // else what the launcher knows, for when no rank of any host has spoken
};

struct Turn {
  bool start = false;     // else the run has ended with `status`
  Assignment assignment;  // of a start
  int status = 0;         // of an end
  std::string line;       // why the attempt before failed, where no rank has said so
  std::string notice;     // of a start: what this launcher prints for all
};

}  // namespace ofsdp::cli
