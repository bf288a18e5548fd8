// MeetingWatch: how a meeting of hosts ends. While ranks connect to each other and meet on their
// hosts, each keeps its connection to rank 0, says there how far it has come, and hears whether all
// have met or the meeting is off. So whoever waits for a rank that does not come does so no longer
// than all, and rank 0 alone says which rank that is: one that has said nothing, rather than one that
// waits for it.
//
// Ownership: owns the connections to rank 0, there those to all. Threads: one. Errors: at rank 0
// kFault naming the rank, or what another rank reports; elsewhere kPeer, since rank 0 speaks, but
// kFault at the first rank of each host when rank 0 itself has ended.
#pragma once

#include <string>
#include <vector>

#include "fsdp/comm/hosts/host_meeting_wire.h"

namespace ofsdp::fsdp {

class MeetingWatch {
 public:
  // `who`: every rank for messages, "rank 2 (pid 7 on b)"; `point`: where they meet.
  MeetingWatch(HostMap map, std::vector<HostConnection> sockets, std::vector<std::string> who,
               std::string point, std::chrono::seconds timeout);

  const std::string& who(int rank) const { return who_[static_cast<size_t>(rank)]; }
  StreamClock::time_point deadline() const { return deadline_; }
  std::chrono::seconds timeout() const { return timeout_; }
  bool is_late() const { return StreamClock::now() >= deadline_; }
  std::chrono::seconds left() const;  // at least one
  // Until `fd` can be read (-1: never), or the deadline. An error: the meeting is off.
  Status readable(int fd);
  void connected();  // this rank has all its connections
  // This rank has met those of its host, or not. What becomes of the meeting.
  Status conclude(Status mine);

 private:
  enum class Stage { kAbsent, kConnected, kMet };
  Status hear(HostConnection& from);
  Status hear_report(HostConnection& from);
  Status hear_verdict(HostConnection& from);
  Status conclude_all(Status mine);
  bool all_have_spoken() const;
  Status missing() const;
  void send_all(int go) const;
  void report(HostReport::Kind kind, const Status& status);

  const HostMap map_;
  std::vector<HostConnection> sockets_;
  const std::vector<std::string> who_;
  const std::string point_;
  const std::chrono::seconds timeout_;
  StreamClock::time_point deadline_;
  bool over_ = false;
  std::vector<Stage> stages_;  // at rank 0, by rank
  std::vector<bool> late_;     // ... who has said that it waits in vain
  std::string late_text_;      // ... and what the first of them said
};

}  // namespace ofsdp::fsdp
