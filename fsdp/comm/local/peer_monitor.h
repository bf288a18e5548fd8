// Watches the liveness pipes of the other ranks: pipes whose write end only that rank holds, so the
// kernel closes them however it ends. The thread sleeps in poll and uses no processor time.
//
// A rank whose liveness pipe closes though it neither left in order nor anybody failed is entered
// in the control page as dead, and every waiter is woken.
//
// Ownership: owns the liveness pipes and its thread; the page must outlive it. Threads: started and
// stopped by one. Errors: kFault when the system gives no thread or descriptor.
#pragma once

#include <poll.h>

#include <memory>
#include <thread>
#include <vector>

#include "fsdp/comm/local/control_page.h"
#include "fsdp/comm/local/fd_channel.h"
#include "fsdp/comm/local/rendezvous.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

class PeerMonitor {
 public:
  // liveness_pipes[i] is the read end of that of self.ranks[i]; this rank's own is not watched.
  static Result<std::unique_ptr<PeerMonitor>> start(const ControlPage* page, const LocalRank& self,
                                                    std::vector<UniqueFd> liveness_pipes);
  ~PeerMonitor() { stop(); }
  void stop();  // returns when the thread has ended; may be called again

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
  std::vector<pollfd> events_;  // one a rank, the stop event last
  std::thread thread_;
};

}  // namespace ofsdp::fsdp
