// How strangers are kept out of a job that spans hosts.
//
// A Challenge lets two processes prove to each other that they know the job's secret, before either
// says anything else. Each draws a nonce. A proof covers both nonces, the side and the purpose of
// the connection, so that it is worth nothing on another connection. The side that accepted proves
// nothing until the other one has proved the secret.
//
//   connects > accepts   challenge    its nonce
//   accepts > connects   challenge    its nonce
//   connects > accepts   proof
//   accepts > connects   proof; or turned_away, and the connection is closed
//
// Messages are neither encrypted nor signed: this keeps out anyone who can open connections, but
// not an attacker between two hosts.
//
// A Doorkeeper challenges all clients of a listening socket at the same time. Each gets kPatience
// from the moment it was accepted, however many bytes it sends; if too many wait, the oldest must
// go. So strangers delay nobody and learn nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <string>
#include <vector>

#include "fsdp/comm/store/job_secret.h"
#include "fsdp/comm/store/store.h"
#include "fsdp/comm/store/stream_socket.h"

namespace ofsdp::fsdp {

// The secret must outlive the challenge.
class Challenge {
 public:
  enum class Side { kConnects, kAccepts };
  enum class State { kOpen, kPassed, kTurnedAway };

  Challenge(const JobSecret& secret, std::string purpose, Side side);

  // Reads the news and sends the next message. Returns kTurnedAway if the other end holds another
  // secret, or says that this one does.
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
  std::string theirs_;  // empty until it has arrived
  bool begun_ = false;
};

// Blocks until the challenge is over. Returns kOpen if the connection is closed or the deadline has
// passed before.
Challenge::State settle(Challenge& challenge, Store& store, StreamClock::time_point deadline);

// Listener and secret must outlive the doorkeeper.
class Doorkeeper {
 public:
  static constexpr std::chrono::seconds kPatience{5};
  static constexpr size_t kMaxStrangers = 256;

  // Lets in clients that prove the secret for `purpose` and then set the key `word`.
  Doorkeeper(const Listener& listener, const JobSecret& secret, std::string purpose,
             std::string word);

  // Blocks until a stranger, one of `inside` or the listener has news, at most until the deadline.
  // Then pumps all of them.
  void wait(std::vector<Store*> inside, StreamClock::time_point deadline);
  // Returns the clients that have passed since the last call. Their Stores have the word.
  std::vector<Store> let_in();

  // Returns how many clients held another secret, or none.
  int turned_away() const { return turned_away_; }

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
