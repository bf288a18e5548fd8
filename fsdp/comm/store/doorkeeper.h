// Doorkeeper: lets in at a listening socket who proves the job's secret and says a first word. All
// who stand outside are looked after together, each for kPatience in all from the moment it was
// accepted, however many bytes it sends; when too many stand there the oldest has to go. So
// strangers hold up nobody, and learn nothing.
//
// Ownership: the callers own listener and secret, which outlive it. Threads: one. Errors: none; how
// many were turned away is told.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "fsdp/comm/store/challenge.h"

namespace ofsdp::fsdp {

class Doorkeeper {
 public:
  static constexpr std::chrono::seconds kPatience{5};
  static constexpr size_t kMostStrangers = 256;

  Doorkeeper(const Listener& listener, const JobSecret& secret, std::string purpose,
             std::string word);

  // Waits until somebody outside, one of `inside` or the listener has news, or the deadline; then
  // pumps all of them.
  void wait(std::vector<Store*> inside, StreamClock::time_point deadline);
  // Whoever has proved the secret and said the word since the last call: its Store has the word.
  std::vector<Store> let_in();

  int turned_away() const { return turned_away_; }  // for they hold another secret, or none

 private:
  struct Stranger {
    Store store;
    Challenge challenge;
    StreamClock::time_point until;
  };

  void accept_all();

  const Listener* listener_;
  const JobSecret* secret_;
  const std::string purpose_, word_;
  std::list<Stranger> outside_;  // the oldest first
  StreamClock::time_point accepts_from_{};
  int turned_away_ = 0;
};

}  // namespace ofsdp::fsdp
