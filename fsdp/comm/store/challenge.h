// Challenge: by what two processes that share a job's secret know each other, before either says
// anything else. Each draws a nonce, and each proves the secret over both nonces, its side and the
// purpose of the connection: what was said on one connection proves nothing on another. The side
// that accepted proves nothing to whoever has not proved the secret to it.
//
//   connects > accepts   challenge    its nonce
//   accepts > connects   challenge    its nonce
//   connects > accepts   proof
//   accepts > connects   proof; or turned_away, and the connection is closed
//
// Nothing is encrypted and what follows is not signed: it keeps out whoever can open connections,
// not whoever sits between two hosts.
//
// Ownership: the callers own Store and secret, which outlive it. Threads: one. Errors: states.
#pragma once

#include <string>

#include "fsdp/comm/store/job_secret.h"
#include "fsdp/comm/store/store.h"

namespace ofsdp::fsdp {

class Challenge {
 public:
  enum class Side { kConnects, kAccepts };
  enum class State { kOpen, kPassed, kTurnedAway };

  Challenge(const JobSecret& secret, std::string purpose, Side side);

  // Says what is to be said next. kTurnedAway: the other end holds another secret, or says so.
  State look(Store& store);

 private:
  std::string side(bool mine) const;
  std::vector<std::string> parts(bool mine) const;
  State nothing_else(const Store& store);
  State judge(Store& store, const Json& said);

  const JobSecret* secret_;
  std::string purpose_;
  Side side_;
  State state_ = State::kOpen;
  std::string mine_;    // nonces
  std::string theirs_;  // empty: not there yet
  bool begun_ = false;
};

// Until the challenge is over, the connection is closed or the deadline has come, which are kOpen.
Challenge::State settle(Challenge& challenge, Store& store, StreamClock::time_point deadline);

}  // namespace ofsdp::fsdp
