// How the ranks on one host meet, and how they notice later that one has died.
//
// The first rank on the host listens on an abstract Unix socket (no file, gone with the process),
// which is named after user and rendezvous; the others connect. If another user holds that name,
// the next one is taken. Each rank has a liveness pipe: only that rank holds the write end, so the
// kernel closes it however the rank ends. It sends the read end to the first rank, which hands the
// control page and all liveness pipes to everyone. Only processes of the same user are let in.
//
// The connections stay, to pass descriptors of shared memory (PeerLinks).
//
// Errors: kInput if the environment contradicts itself (two ranks 1, another world size); kFault
// with the missing ranks if they do not come in time; kPeer if rank 0 has called the meeting off
// and reports the reason itself.
#pragma once

#include <poll.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "fsdp/comm/local/control_page.h"
#include "fsdp/comm/local/fd_channel.h"
#include "fsdp/comm/rank_identity.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

// Returns this rank's place if all ranks are on one host.
LocalRank only_host(const RankIdentity& identity);

struct LocalRendezvous {
  ControlPage page;
  PeerLinks links;
  std::vector<UniqueFd> liveness_pipes;  // read ends, by place
  UniqueFd own_liveness_pipe;            // write end; if it closes before the rank leaves, it died
  int cores = 1;                         // that the ranks may use together
};

Result<LocalRendezvous> meet(const LocalRank& self, std::chrono::seconds timeout);

// Watches the liveness pipes of the other ranks. If one closes although the rank has not left and
// no failure is known, notes the death in the control page and wakes every waiter. The thread
// sleeps in poll. The page must outlive the monitor.
class PeerMonitor {
 public:
  // `liveness_pipes`: read ends, by place.
  static Result<std::unique_ptr<PeerMonitor>> start(const ControlPage* page, const LocalRank& self,
                                                    std::vector<UniqueFd> liveness_pipes);
  ~PeerMonitor() { stop(); }
  // Returns after the thread has ended; may be called again.
  void stop();

 private:
  PeerMonitor(const ControlPage* page, std::vector<int> ranks, std::vector<UniqueFd> liveness_pipes,
              UniqueFd stop_event)
      : page_(page),
        ranks_(std::move(ranks)),
        liveness_pipes_(std::move(liveness_pipes)),
        stop_event_(std::move(stop_event)) {}
  void watch();
  bool lost(int rank);

  const ControlPage* page_;
  std::vector<int> ranks_;
  std::vector<UniqueFd> liveness_pipes_;
  UniqueFd stop_event_;
  std::vector<pollfd> events_;  // one for each rank, the stop event last
  std::thread thread_;
};

}  // namespace ofsdp::fsdp
