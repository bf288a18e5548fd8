// LinkLine: one connection to a rank of another host: headers and payloads out of a queue, and in.
//
// Payloads are read straight to where they belong: when a header with a payload has come, the owner
// says where. Nothing blocks.
//
// Ownership: owns its socket; queued payloads belong to the caller until `sent` names them.
// Threads: one. Errors: values; kClosed is final.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
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
  bool flush(const std::function<void(const LinkAnswer&)>& sent) {
    while (open() && !queue_.empty()) {
      Out& out = queue_.front();
      const size_t head = sizeof out.header, whole = head + out.answer.bytes;
      iovec parts[2];
      int count = 0;
      if (written_ < head) {
        parts[count++] = {reinterpret_cast<char*>(&out.header) + written_, head - written_};
      }
      const size_t done = written_ > head ? written_ - head : 0;
      if (out.answer.bytes > done) {
        parts[count++] = {const_cast<std::byte*>(out.answer.data) + done, out.answer.bytes - done};
      }
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = static_cast<size_t>(count);
      const ssize_t wrote = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return errno == EAGAIN;
      written_ += static_cast<size_t>(wrote);
      if (written_ < whole) continue;
      if (out.answer.bytes > 0) sent(out.answer);
      written_ = 0;
      queue_.pop_front();
    }
    return true;
  }

  // Reads what there is. `header` says where the payload of a header goes (null: it has none, or it
  // was wrong and the result false); `payload` is called when it is there. False: closed or broken;
  // `error` then is 0 or the system's number.
  bool receive(const std::function<bool(const LinkHeader&, std::byte*&)>& header,
               const std::function<void(const LinkHeader&)>& payload, int& error) {
    error = 0;
    while (open()) {
      char* const to =
          in_payload_ ? reinterpret_cast<char*>(target_) : reinterpret_cast<char*>(&in_);
      const size_t whole = in_payload_ ? in_.bytes : sizeof in_;
      const ssize_t count = recv(fd(), to + got_, whole - got_, MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return true;
      if (count <= 0) {
        error = count < 0 ? errno : 0;
        return false;
      }
      got_ += static_cast<size_t>(count);
      if (got_ < whole) continue;
      got_ = 0;
      if (in_payload_) {
        in_payload_ = false;
        payload(in_);
        continue;
      }
      target_ = nullptr;
      error = EPROTO;
      if (in_.magic != kLinkMagic || !header(in_, target_)) return false;
      error = 0;
      in_payload_ = target_ != nullptr;
    }
    return true;
  }

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
};

}  // namespace ofsdp::fsdp
