#include "fsdp/comm/hosts/link_line.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace ofsdp::fsdp {

bool LinkLine::flush(const std::function<void(const LinkAnswer&)>& sent) {
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

bool LinkLine::receive(const std::function<bool(const LinkHeader&, std::byte*&)>& header,
                       const std::function<void(const LinkHeader&)>& payload, int& error) {
  error = 0;
  while (open()) {
    const bool dropped = in_payload_ && target_ == nowhere();
    auto* const begin = in_payload_ ? target_ : reinterpret_cast<std::byte*>(&in_);
    std::byte* const to = dropped ? begin : begin + got_;
    const size_t whole = in_payload_ ? in_.bytes : sizeof in_;
    const size_t most = dropped ? std::min(whole - got_, dropped_.size()) : whole - got_;
    const ssize_t count = recv(fd(), to, most, MSG_DONTWAIT);
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
    if (queue_.size() + deferred.size() > kMaxPending) return false;
    if (in_.magic != kLinkMagic || !header(in_, target_)) return false;
    error = 0;
    in_payload_ = target_ != nullptr;
  }
  return true;
}

}  // namespace ofsdp::fsdp
