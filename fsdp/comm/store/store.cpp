#include "fsdp/comm/store/store.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace ofsdp::fsdp {
namespace {

constexpr size_t kHeader = 4;
constexpr std::chrono::milliseconds kMaxLook{
    500};  // a longer gap means that this process did not run

size_t length_in(const std::string& bytes) {
  size_t length = 0;
  for (size_t i = 0; i < kHeader; ++i) length = length << 8 | static_cast<uint8_t>(bytes[i]);
  return length;
}

}  // namespace

Store::Store(UniqueFd socket, size_t max_message)
    : socket_(std::move(socket)), max_message_(max_message) {
  const int on = 1;
  setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void Store::set(const std::string& key, Json value) {
  if (!closed()) set_message(message(key, std::move(value)));
}

std::string Store::message(const std::string& key, Json value) {
  value["kind"] = key;
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string bytes;
  for (size_t i = kHeader; i-- > 0;) bytes += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return bytes + text;
}

void Store::set_message(const std::string& bytes) {
  if (closed()) return;
  out_ += bytes;
  if (out_.size() > kMaxUnsent) close();
  write_out();
}

const Json* Store::get(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<Json> Store::take(const std::string& key) {
  auto found = values_.extract(key);
  return found.empty() ? std::nullopt : std::optional(std::move(found.mapped()));
}

bool Store::wait(const std::string& key, StreamClock::time_point deadline) {
  while (get(key) == nullptr && !closed() && StreamClock::now() < deadline) {
    const short wanted = has_unsent() ? POLLIN | POLLOUT : POLLIN;
    if (wait_ready(fd(), wanted, deadline)) move_bytes(&key);
  }
  return get(key) != nullptr;
}

std::chrono::milliseconds Store::silence() {
  const auto now = StreamClock::now();
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now - looked_);
  if (since.count() > 0) {
    silence_ += std::min(since, kMaxLook);
    looked_ = now;
  }
  return silence_;
}

// Reads a limited part count, so that a peer that never stops delays nobody else.
void Store::move_bytes(const std::string* until) {
  write_out();
  for (size_t parts = 0; parts < 2 * kMaxKeys && !closed() && read_part(); ++parts) {
    if (until != nullptr && get(*until) != nullptr) return;
  }
}

void Store::write_out() {
  while (!closed() && !out_.empty()) {
    const ssize_t sent = send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (!would_block()) close();
      return;
    }
    out_.erase(0, static_cast<size_t>(sent));
  }
}

// Reads the rest in a header or a body, as far as it has arrived. Returns false if nothing more is
// there.
bool Store::read_part() {
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
  if (length == 0 || length > max_message_) close();
  if (in_.size() == kHeader + length) accept_message();
  return true;
}

void Store::accept_message() {
  Json value = Json::parse(in_.begin() + kHeader, in_.end(), nullptr, false);
  in_.clear();
  if (!value.is_object() || !value.contains("kind") || !value["kind"].is_string()) return close();
  const std::string key = value["kind"];
  values_[key] = std::move(value);
  if (values_.size() > kMaxKeys) close();
}

bool wait_for_news(const std::vector<Store*>& stores, int fd, StreamClock::time_point deadline) {
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

void StoreFields::number(const char* name, int min, int max, int& value) {
  if (out_ != nullptr) (*out_)[name] = value;
  if (out_ != nullptr) return;
  const Json* found = member(name, [](const Json& j) { return j.is_number_integer(); });
  if (found == nullptr) return;
  const auto read = found->get<int64_t>();
  good_ = read >= min && read <= max;
  if (good_) value = static_cast<int>(read);
}

void StoreFields::word(const char* name, uint64_t& value) {
  if (out_ != nullptr) (*out_)[name] = value;
  if (out_ != nullptr) return;
  const Json* found = member(name, [](const Json& j) { return j.is_number_unsigned(); });
  if (found != nullptr) value = found->get<uint64_t>();
}

void StoreFields::text(const char* name, std::string& value) {
  if (out_ != nullptr) (*out_)[name] = value.substr(0, kMaxText);
  if (out_ != nullptr) return;
  const Json* found = member(name, [](const Json& j) {
    return j.is_string() && j.get_ref<const std::string&>().size() <= kMaxText;
  });
  if (found != nullptr) value = found->get<std::string>();
}

void StoreFields::flag(const char* name, bool& value) {
  if (out_ != nullptr) (*out_)[name] = value;
  if (out_ != nullptr) return;
  const Json* found = member(name, [](const Json& j) { return j.is_boolean(); });
  if (found != nullptr) value = found->get<bool>();
}

const Json* StoreFields::member(const char* name, bool (*right)(const Json&)) {
  const auto found = in_->find(name);
  good_ = good_ && found != in_->end() && right(*found);
  return good_ ? &*found : nullptr;
}

}  // namespace ofsdp::fsdp
