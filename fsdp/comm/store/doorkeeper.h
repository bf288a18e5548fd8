// Keeps strangers out of a job that spans hosts.
//
// A Challenge lets two processes prove to each other that they know the job's secret, before either
// says anything else. Each draws a nonce. A proof covers both nonces, the side and the connection's
// purpose, so that it is worth nothing on another connection. The side that accepted proves nothing
// until the other one has proved the secret.
//
//   connects > accepts   challenge    a nonce
//   accepts > connects   challenge    a nonce
//   connects > accepts   proof
//   accepts > connects   proof; or turned_away, and the connection is closed
//
// Messages are neither encrypted nor signed: this keeps out anyone who can open connections, but
// not an attacker between two hosts.
//
// A Doorkeeper challenges all clients on a listening socket at the same time. Each gets kPatience
// from the moment it was accepted, however many bytes it sends; if too many wait, the oldest must
// go. So strangers delay nobody and learn nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <string>
#include <vector>

#include "fsdp/comm/store/store.h"
#include "fsdp/comm/store/stream_socket.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

// JobSecret: shared by the processes in a job that spans hosts, so that strangers cannot join. It
// is read from OFSDP_SECRET_FILE, the path to a file that only the owner can read, or from
// OFSDP_SECRET. If neither is set, it is empty, and then anybody can prove it.
//
// A proof is an HMAC-SHA256 (RFC 2104) with the secret as the key: 64 hexadecimal digits.

// The warning if ranks on several hosts have no secret.
inline constexpr const char* kNoSecret =
    "warning: neither OFSDP_SECRET_FILE nor OFSDP_SECRET is set: whoever reaches the ports of this "
    "run can join it (docs/howto/several-hosts.md)";

class JobSecret {
 public:
  static constexpr size_t kMaxBytes = 4096;

  JobSecret() = default;
  explicit JobSecret(std::string bytes) : bytes_(std::move(bytes)) {}
  // Returns kInput if others can read the file, if it is empty or too long, or if the variable is
  // empty.
  static Result<JobSecret> from_environment();
  static JobSecret drawn();  // at random

  bool empty() const { return bytes_.empty(); }
  const std::string& bytes() const { return bytes_; }

  // Returns why an end that holds the job's secret turns this one away.
  std::string refusal() const;

  // Covers each part's length too, so that no two part lists have the same proof.
  std::string proof(const std::vector<std::string>& parts) const;
  // Takes a time that does not depend on how many digits in `claimed` are right.
  bool proves(const std::string& claimed, const std::vector<std::string>& parts) const;

 private:
  std::string bytes_;
};

// Returns 32 random bytes in hexadecimal digits.
std::string drawn_nonce();

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
  static constexpr std::chrono::milliseconds kPatienceEach{10};

  // Lets in clients that prove the secret for `purpose` and then set the key `word`. `expected`:
  // clients that may come at once. There is room for kMaxStrangers more, and each expected client
  // adds kPatienceEach to everyone's time.
  Doorkeeper(const Listener& listener, const JobSecret& secret, std::string purpose,
             std::string word, int expected = 0);

  // Blocks until a stranger, a Store in `inside` or the listener has news, at most until the
  // deadline. Then pumps them all.
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
  const size_t most_outside_;
  const std::chrono::milliseconds patience_;
  std::list<Stranger> outside_;  // the oldest first
  StreamClock::time_point accepts_from_{};
  int turned_away_ = 0;
};

}  // namespace ofsdp::fsdp
