// LinkLine: one connection to a rank of another host: headers and payloads out of a queue, and in.
//
// Payloads are read straight to where they belong: when a header with a payload has come, the owner
// says where. Nothing blocks.
//
// Ownership: owns its socket; queued payloads belong to the caller until `sent` names them.
// Threads: one. Errors: values; kClosed is final.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "fsdp/comm/hosts/link_wire.h"
#include "fsdp/comm/local/fd_channel.h"

namespace ofsdp::fsdp {

// An answer's bytes, and what to do when they have been read.
struct LinkAnswer {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  int buffer = -1;   // of the sender's own that holds them; -1: none
  int channel = -1;  // whose `served` counts `elements` when they are sent; -1: counted, or none
  int cell = 0;      // ... of this rank
  int64_t elements = 0;
};

class LinkLine {
 public:
  static constexpr size_t kMostWaiting = 4096;  // a rank has far fewer requests on their way

  LinkLine(int peer, UniqueFd socket) : peer_(peer), socket_(std::move(socket)) {}

  int peer() const { return peer_; }
  int fd() const { return socket_.get(); }
  bool open() const { return socket_.valid(); }
  void close() { socket_.reset(); }
  bool idle() const { return queue_.empty(); }

  void queue(const LinkHeader& header, const LinkAnswer& answer = {}) {
    if (open()) queue_.push_back({header, answer});
  }

  // Writes what the socket takes; `sent` gets each answer that is out. False: the connection broke.
  bool flush(const std::function<void(const LinkAnswer&)>& sent);
  // Reads what there is. `header` says where the payload of a header goes (null: it has none, or it
  // was wrong and the result false); `payload` is called when it is there. False: closed, broken,
  // or a peer that asks for ever and does not read; `error` then is 0 or the system's number.
  bool receive(const std::function<bool(const LinkHeader&, std::byte*&)>& header,
               const std::function<void(const LinkHeader&)>& payload, int& error);

  // The header whose payload is on its way, or null. The payload is read and forgotten after
  // `drop`, or where `header` said `nowhere`.
  const LinkHeader* arriving() const { return in_payload_ ? &in_ : nullptr; }
  void drop() { target_ = nowhere(); }
  std::byte* nowhere() { return dropped_.data(); }

  std::vector<LinkHeader> deferred;  // requests that cannot be answered yet
  std::vector<double> doubles[2];    // an exchange on its way out
  bool left = false;                 // the peer has said that it is done

 private:
  struct Out {
    LinkHeader header;
    LinkAnswer answer;
  };
  int peer_;
  UniqueFd socket_;
  std::deque<Out> queue_;
  size_t written_ = 0;  // of the first of the queue
  LinkHeader in_;
  size_t got_ = 0;  // bytes of in_ and its payload
  std::byte* target_ = nullptr;
  bool in_payload_ = false;
  std::array<std::byte, 4096> dropped_;
};

}  // namespace ofsdp::fsdp
