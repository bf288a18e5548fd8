// NodeLink: a launcher's tie to the launchers of the other hosts. It says what to start, is told
// how that ended, and then what is next. Two kinds: for one host alone, and for one of several
// hosts that meet at a rendezvous.
//
// Ownership: borrows the signals. Threads: the main one. Errors: of `next`, what keeps this
// launcher from taking part: kInput when the launchers' commands contradict each other, kFault
// when the others cannot be reached.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "kernels/base/status.h"
#include "runtime/cli/launch/node_messages.h"
#include "runtime/cli/launch/signal_queue.h"
#include "runtime/options.h"

namespace ofsdp::cli {

class NodeLink {
 public:
  virtual ~NodeLink() = default;
  // Waits until all agree. `last`: how this host's ranks ended; null at first.
  virtual Result<Turn> next(const Outcome* last) = 0;
  virtual int fd() const { return -1; }  // readable when another launcher has said something
  virtual void failing() {}              // a rank of this host has failed; the others go on
  virtual bool told_to_stop() { return false; }  // REQUIRES: asked every tenth of a second
};

// The part of the command that the launchers must know.
struct LaunchPlan {
  LaunchOptions options;
  std::string checkpoint_dir;             // empty: none
  std::string output;                     // empty: none
  std::chrono::milliseconds grace{3000};  // for the other ranks, once one has failed
};

std::chrono::milliseconds timeout_of(const LaunchOptions& options);

// One of several hosts when the options name a rendezvous.
std::unique_ptr<NodeLink> make_node_link(const LaunchPlan& plan, const SignalQueue& signals);

// The same for all ranks of a run, and for no other run.
std::string unique_run_id();

}  // namespace ofsdp::cli
