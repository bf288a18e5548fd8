// Store: values by key that two processes exchange when they meet. Each end on a TCP connection has
// one: `set` gives the other end a value, `get` returns the newest value that the other end has
// set, and `wait` blocks until there is one. Rank 0 and the launcher's coordinator have a Store for
// each client.
//
// On the wire a value is a length in four bytes, most significant first, and as many JSON bytes: an
// object with the key as "kind". `wait` reads nothing beyond the message that it waits for, so the
// socket can be used for something else after a handshake (`release`).
//
// Only `wait` blocks: `set` keeps bytes that the socket does not take, `pump` moves bytes both
// ways. A Store closes the connection if a message is longer than `max_message` or is not an object
// with a kind, if there are more than kMaxKeys keys, or if the peer does not read. A broken
// connection is not an error but a state (`closed`); values that came before stay.
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
  static constexpr size_t kMaxMessage = size_t{64} << 10;
  static constexpr size_t kMaxUnsent = size_t{1} << 20;
  static constexpr size_t kMaxKeys = 16;

  Store() = default;
  explicit Store(UniqueFd socket, size_t max_message = kMaxMessage);

  int fd() const { return socket_.get(); }
  bool closed() const { return !socket_.valid(); }
  bool has_unsent() const { return !out_.empty(); }
  bool empty() const { return values_.empty(); }  // no value is left to take
  void close() { socket_.reset(); }
  // Returns the socket; bytes after the last value are still in it. REQUIRES: nothing is unsent.
  UniqueFd release() { return std::move(socket_); }

  void set(const std::string& key, Json value = Json::object());
  // Sets a value for which `message` has returned the bytes, to give many the same value.
  void set_message(const std::string& bytes);
  static std::string message(const std::string& key, Json value);
  const Json* get(const std::string& key) const;  // null if there is none
  std::optional<Json> take(const std::string& key);
  // Reads nothing after the value. Returns false if the connection is closed or the deadline
  // passed.
  bool wait(const std::string& key, StreamClock::time_point deadline);
  void pump() { move_bytes(nullptr); }

  // Returns how long the other end has sent nothing. Time in which this process was stopped does
  // not count.
  std::chrono::milliseconds silence();

 private:
  void move_bytes(const std::string* until);  // stops once that key has a value
  void write_out();
  bool read_part();
  void accept_message();

  UniqueFd socket_;
  size_t max_message_ = kMaxMessage;
  std::map<std::string, Json> values_;
  std::string in_, out_;
  std::chrono::milliseconds silence_{0};
  StreamClock::time_point looked_ = StreamClock::now();
};

// Blocks until a store has news or `fd` is readable (-1 means none), at most until the deadline.
// Then pumps all stores. Returns true if `fd` is readable.
bool wait_for_news(const std::vector<Store*>& stores, int fd, StreamClock::time_point deadline);

// Writes a struct into a value or reads it from one, with one member list for both:
//
//   void list_fields(StoreFields& f, Outcome& o) { f.flag("spoke", o.spoke); f.text(...); }
//   Json value = to_value(outcome);  std::optional<Outcome> back = from_value<Outcome>(value);
//
// Reading fails if a member is missing, is not a whole number in the range, or is a text longer
// than kMaxText bytes. Writing cuts longer texts.
class StoreFields {
 public:
  static constexpr size_t kMaxText = 2048;

  explicit StoreFields(Json* out) : out_(out) {}
  explicit StoreFields(const Json& in) : in_(&in) {}

  void number(const char* name, int min, int max, int& value);
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
