// Store: what two processes that meet know of each other, by key. Each end of a TCP connection has
// one: `set` gives the other end a value, `get` is the newest value that the other end has set, and
// `wait` returns when there is one. Rank 0 and the launcher's coordinator serve a meeting with one
// Store for each client.
//
// On the wire a value is four bytes of length, most significant first, and so many bytes of JSON:
// an object whose "kind" is the key. Nothing is read beyond the message that is asked for, so a
// socket can be taken out again after a handshake (`release`).
//
// Nothing blocks but `wait`: `set` keeps what the socket does not take, `pump` moves bytes both
// ways. Bounded: a message of more than `most_message` bytes, one that is no object with a kind,
// more than kMostKeys keys, or a peer that does not read closes the connection.
//
// Ownership: owns the socket. Threads: one. Errors: a broken connection is a state (`closed`),
// since the callers know whose it was. Values that came before it broke stay.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/store/stream_socket.h"

namespace ofsdp::fsdp {

using Json = nlohmann::json;

class Store {
 public:
  static constexpr size_t kMostMessage = size_t{64} << 10;
  static constexpr size_t kMostUnsent = size_t{1} << 20;
  static constexpr size_t kMostKeys = 16;

  Store() = default;
  explicit Store(UniqueFd socket, size_t most_message = kMostMessage)
      : socket_(std::move(socket)), most_message_(most_message) {
    const int on = 1;
    setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  int fd() const { return socket_.get(); }
  bool closed() const { return !socket_.valid(); }
  bool has_unsent() const { return !out_.empty(); }
  bool empty() const { return values_.empty(); }  // the other end has set nothing, or all is taken
  void close() { socket_.reset(); }
  // REQUIRES: nothing is unsent. The socket, with all bytes after the last value that came.
  UniqueFd release() { return std::move(socket_); }

  void set(const std::string& key, Json value = Json::object()) {
    if (closed()) return;
    value["kind"] = key;
    const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    for (size_t i = kHeader; i-- > 0;) out_ += static_cast<char>(text.size() >> (8 * i) & 0xff);
    out_ += text;
    if (out_.size() > kMostUnsent) close();
    write_out();
  }

  // Null: none.
  const Json* get(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }

  std::optional<Json> take(const std::string& key) {
    auto found = values_.extract(key);
    return found.empty() ? std::nullopt : std::optional(std::move(found.mapped()));
  }

  // Reads nothing after the value. False: the connection is closed, or the deadline came first.
  bool wait(const std::string& key, StreamClock::time_point deadline) {
    while (get(key) == nullptr && !closed() && StreamClock::now() < deadline) {
      const short wanted = has_unsent() ? POLLIN | POLLOUT : POLLIN;
      if (wait_ready(fd(), wanted, deadline)) move_bytes(&key);
    }
    return get(key) != nullptr;
  }

  void pump() { move_bytes(nullptr); }

  // How long the other end has said nothing. Time in which this process did not look (because it
  // was stopped) does not count.
  std::chrono::milliseconds silence() {
    const auto now = StreamClock::now();
    const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now - looked_);
    if (since.count() > 0) {
      silence_ += std::min(since, kLongestLook);
      looked_ = now;
    }
    return silence_;
  }

 private:
  static constexpr size_t kHeader = 4;
  static constexpr std::chrono::milliseconds kLongestLook{
      500};  // more means that this process did not run

  static size_t length_in(const std::string& bytes) {
    size_t length = 0;
    for (size_t i = 0; i < kHeader; ++i) length = length << 8 | static_cast<uint8_t>(bytes[i]);
    return length;
  }

  bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

  // until there is a value of that key
  // At most so many parts that a peer that never stops holds up nobody else.
  void move_bytes(const std::string* until) {
    write_out();
    for (size_t parts = 0; parts < 2 * kMostKeys && !closed() && read_part(); ++parts) {
      if (until != nullptr && get(*until) != nullptr) return;
    }
  }

  void write_out() {
    while (!closed() && !out_.empty()) {
      const ssize_t sent = send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) {
        if (!would_block()) close();
        return;
      }
      out_.erase(0, static_cast<size_t>(sent));
    }
  }

  // Reads the rest of a header or of a body, as far as it has come. False: nothing more is there.
  bool read_part() {
    const size_t had = in_.size();
    const size_t whole = kHeader + (had < kHeader ? 0 : length_in(in_));
    in_.resize(whole);
    const ssize_t got = recv(fd(), in_.data() + had, whole - had, MSG_DONTWAIT);
    in_.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && would_block()) return false;
    if (got <= 0) {
      close();
      return false;
    }
    silence_ = {};
    if (in_.size() < kHeader) return true;
    const size_t length = length_in(in_);
    if (length == 0 || length > most_message_) close();
    if (in_.size() == kHeader + length) accept_message();
    return true;
  }

  void accept_message() {
    Json value = Json::parse(in_.begin() + kHeader, in_.end(), nullptr, false);
    in_.clear();
    if (!value.is_object() || !value.contains("kind") || !value["kind"].is_string()) return close();
    const std::string key = value["kind"];
    values_[key] = std::move(value);
    if (values_.size() > kMostKeys) close();
  }

  UniqueFd socket_;
  size_t most_message_ = kMostMessage;
  std::map<std::string, Json> values_;
  std::string in_, out_;
  std::chrono::milliseconds silence_{0};
  StreamClock::time_point looked_ = StreamClock::now();
};

// Waits until a store has news, or `fd` (-1: none) can be read, or the deadline; then pumps all
// stores. True: `fd` can be read.
inline bool wait_for_news(const std::vector<Store*>& stores, int fd,
                          StreamClock::time_point deadline) {
  std::vector<pollfd> events{{fd, POLLIN, 0}};  // poll skips -1
  for (const Store* store : stores) {
    const short wanted = store->has_unsent() ? POLLIN | POLLOUT : POLLIN;
    events.push_back({store->fd(), wanted, 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - StreamClock::now());
  const auto patience = std::clamp<int64_t>(left.count(), 0, 1 << 30);
  if (poll(events.data(), events.size(), static_cast<int>(patience)) <= 0) return false;
  for (size_t i = 0; i < stores.size(); ++i) {
    if (events[i + 1].revents != 0) stores[i]->pump();
  }
  return events[0].revents != 0;
}

// Writes a struct into a value or reads it from one, by one list of members for both directions:
//
//   void list_fields(StoreFields& f, Outcome& o) { f.flag("spoke", o.spoke); f.text(...); }
//   Json value = to_value(outcome);  std::optional<Outcome> back = from_value<Outcome>(value);
//
// Reading takes whole numbers in their range and texts of at most kMostText bytes; anything else,
// or a member that is missing, makes the whole wrong. Writing cuts longer texts.
class StoreFields {
 public:
  static constexpr size_t kMostText = 2048;

  explicit StoreFields(Json* out) : out_(out) {}
  explicit StoreFields(const Json& in) : in_(&in) {}

  void number(const char* name, int least, int most, int& value) {
    if (out_ != nullptr) (*out_)[name] = value;
    if (out_ != nullptr) return;
    const Json* found = member(name, [](const Json& j) { return j.is_number_integer(); });
    if (found == nullptr) return;
    const auto read = found->get<int64_t>();
    good_ = read >= least && read <= most;
    if (good_) value = static_cast<int>(read);
  }

  void word(const char* name, uint64_t& value) {
    if (out_ != nullptr) (*out_)[name] = value;
    if (out_ != nullptr) return;
    const Json* found = member(name, [](const Json& j) { return j.is_number_unsigned(); });
    if (found != nullptr) value = found->get<uint64_t>();
  }

  void text(const char* name, std::string& value) {
    if (out_ != nullptr) (*out_)[name] = value.substr(0, kMostText);
    if (out_ != nullptr) return;
    const Json* found = member(name, [](const Json& j) {
      return j.is_string() && j.get_ref<const std::string&>().size() <= kMostText;
    });
    if (found != nullptr) value = found->get<std::string>();
  }

  void flag(const char* name, bool& value) {
    if (out_ != nullptr) (*out_)[name] = value;
    if (out_ != nullptr) return;
    const Json* found = member(name, [](const Json& j) { return j.is_boolean(); });
    if (found != nullptr) value = found->get<bool>();
  }

  bool good() const { return good_; }

 private:
  const Json* member(const char* name, bool (*right)(const Json&)) {
    const auto found = in_->find(name);
    good_ = good_ && found != in_->end() && right(*found);
    return good_ ? &*found : nullptr;
  }

  const Json* in_ = nullptr;
  Json* out_ = nullptr;
  bool good_ = true;
};

template <typename T>
Json to_value(T members) {
  Json value = Json::object();
  StoreFields fields(&value);
  list_fields(fields, members);
  return value;
}

template <typename T>
std::optional<T> from_value(const Json& value) {
  T members;
  StoreFields fields(value);
  list_fields(fields, members);
  return fields.good() ? std::optional(std::move(members)) : std::nullopt;
}

}  // namespace ofsdp::fsdp
