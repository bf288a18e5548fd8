#include "runtime/cli/launch/node_channel.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace ofsdp::cli {
namespace {

constexpr size_t kHeader = 4;
constexpr std::chrono::milliseconds kLongestLook{500};  // more means that we did not run

size_t length_in(const std::string& bytes) {
  size_t length = 0;
  for (size_t i = 0; i < kHeader; ++i) length = length << 8 | static_cast<uint8_t>(bytes[i]);
  return length;
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

NodeChannel::NodeChannel(UniqueFd socket) : socket_(std::move(socket)) {
  const int flags = fcntl(socket_.get(), F_GETFL);
  fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK);
  const int on = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void NodeChannel::send(const nlohmann::json& message) {
  if (closed()) return;
  const std::string text = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (size_t i = kHeader; i-- > 0;) out_ += static_cast<char>(text.size() >> (8 * i) & 0xff);
  out_ += text;
  if (text.size() > kMostMessage || out_.size() > kMostUnsent) close();
  write_out();
}

void NodeChannel::pump() {
  write_out();
  read_in();
}

void NodeChannel::write_out() {
  while (!closed() && !out_.empty()) {
    const ssize_t sent = ::send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (!would_block()) close();
      return;
    }
    out_.erase(0, static_cast<size_t>(sent));
  }
}

// At most what one message takes, so that a peer cannot fill our memory.
void NodeChannel::read_in() {
  std::array<char, 4096> part;
  while (!closed() && in_.size() < kHeader + kMostMessage) {
    const ssize_t got = recv(fd(), part.data(), part.size(), 0);
    if (got < 0 && would_block()) return;
    if (got <= 0) return close();
    in_.append(part.data(), static_cast<size_t>(got));
    silence_ = {};
  }
}

// Also after the connection has ended: its last words count.
std::optional<nlohmann::json> NodeChannel::receive() {
  if (in_.size() < kHeader) return std::nullopt;
  const size_t length = length_in(in_);
  if (length <= kMostMessage && in_.size() < kHeader + length) return std::nullopt;
  nlohmann::json message(nlohmann::json::value_t::discarded);
  if (length <= kMostMessage) {
    message = nlohmann::json::parse(in_.substr(kHeader, length), nullptr, false);
  }
  if (!message.is_object() || !message.contains("kind") || !message["kind"].is_string()) {
    in_.clear();
    close();
    return std::nullopt;
  }
  in_.erase(0, kHeader + length);
  return message;
}

std::chrono::milliseconds NodeChannel::silence() {
  const auto now = std::chrono::steady_clock::now();
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now - looked_);
  if (since.count() > 0) {
    silence_ += std::min(since, kLongestLook);
    looked_ = now;
  }
  return silence_;
}

}  // namespace ofsdp::cli
