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
  explicit Store(UniqueFd socket, size_t most_message = kMostMessage);

  int fd() const { return socket_.get(); }
  bool closed() const { return !socket_.valid(); }
  bool has_unsent() const { return !out_.empty(); }
  bool empty() const { return values_.empty(); }  // the other end has set nothing, or all is taken
  void close() { socket_.reset(); }
  // REQUIRES: nothing is unsent. The socket, with all bytes after the last value that came.
  UniqueFd release() { return std::move(socket_); }

  void set(const std::string& key, Json value = Json::object());
  const Json* get(const std::string& key) const;  // null: none
  std::optional<Json> take(const std::string& key);
  // Reads nothing after the value. False: the connection is closed, or the deadline came first.
  bool wait(const std::string& key, StreamClock::time_point deadline);
  void pump() { move_bytes(nullptr); }

  // How long the other end has said nothing. Time in which this process did not look (because it
  // was stopped) does not count.
  std::chrono::milliseconds silence();

 private:
  void move_bytes(const std::string* until);  // until there is a value of that key
  void write_out();
  bool read_part();
  void accept_message();

  UniqueFd socket_;
  size_t most_message_ = kMostMessage;
  std::map<std::string, Json> values_;
  std::string in_, out_;
  std::chrono::milliseconds silence_{0};
  StreamClock::time_point looked_ = StreamClock::now();
};

// Waits until a store has news, or `fd` (-1: none) can be read, or the deadline; then pumps all
// stores. True: `fd` can be read.
bool wait_for_news(const std::vector<Store*>& stores, int fd, StreamClock::time_point deadline);

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

  void number(const char* name, int least, int most, int& value);
  void word(const char* name, uint64_t& value);
  void text(const char* name, std::string& value);
  void flag(const char* name, bool& value);
  bool good() const { return good_; }

 private:
  const Json* member(const char* name, bool (*right)(const Json&));

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
