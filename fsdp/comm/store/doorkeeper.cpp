#include "fsdp/comm/store/doorkeeper.h"

#include <sodium.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <span>
#include <utility>

#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {
namespace {

constexpr size_t kNonceBytes = 32;

const unsigned char* raw_bytes(const std::string& text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string random_digits() {
  OFSDP_CHECK(sodium_init() >= 0, "libsodium cannot be used");
  std::array<unsigned char, kNonceBytes> bytes;
  randombytes_buf(bytes.data(), bytes.size());
  std::string digits(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(digits.data(), digits.size(), bytes.data(), bytes.size());
  digits.pop_back();
  return digits;
}

std::string without_line_end(std::string text) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

Result<JobSecret> read_secret(const std::string& path) {
  const std::string subject = "OFSDP_SECRET_FILE=" + path;
  auto file = open_for_reading(path);
  if (!file.ok()) return input_error("OFSDP_SECRET_FILE: {}", file.error().message());
  struct stat found {};
  OFSDP_FAULT_IF(fstat(file->fd.get(), &found) != 0, "{}: cannot be read", subject);
  const unsigned rights = found.st_mode & 0777;
  OFSDP_REJECT_IF(
      (rights & 077) != 0,
      "{}: expected a file that its owner alone can read (mode 0600), found mode {:04o}", subject,
      rights);
  OFSDP_REJECT_IF(file->bytes < 1 || file->bytes > static_cast<int64_t>(JobSecret::kMaxBytes),
                  "{}: expected 1 to {} bytes, found {}", subject, JobSecret::kMaxBytes,
                  file->bytes);
  std::string text(static_cast<size_t>(file->bytes), '\0');
  OFSDP_RETURN_IF_ERROR(read_exactly(*file, 0, std::as_writable_bytes(std::span(text))));
  text = without_line_end(std::move(text));
  OFSDP_REJECT_IF(text.empty(), "{}: expected a secret, found an empty line", subject);
  return JobSecret(std::move(text));
}

std::string text_in(const Json& value, const char* name) {
  std::string text;
  StoreFields(value).text(name, text);
  return text;
}

}  // namespace

Result<JobSecret> JobSecret::from_environment() {
  const char* const path = std::getenv("OFSDP_SECRET_FILE");
  if (path != nullptr && *path != 0) return read_secret(path);
  const char* const text = std::getenv("OFSDP_SECRET");
  if (text == nullptr) return JobSecret();
  OFSDP_REJECT_IF(*text == 0, "OFSDP_SECRET: expected a secret, found nothing");
  return JobSecret(text);
}

JobSecret JobSecret::drawn() { return JobSecret(random_digits()); }

std::string JobSecret::refusal() const {
  return format_text(
      "expected the secret of its job in OFSDP_SECRET_FILE or OFSDP_SECRET, found {}",
      empty() ? "none" : "another");
}

std::string JobSecret::proof(const std::vector<std::string>& parts) const {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, raw_bytes(bytes_), bytes_.size());
  for (const std::string& part : parts) {
    const std::string framed = std::to_string(part.size()) + ":" + part;
    crypto_auth_hmacsha256_update(&state, raw_bytes(framed), framed.size());
  }
  std::array<unsigned char, crypto_auth_hmacsha256_BYTES> mac;
  crypto_auth_hmacsha256_final(&state, mac.data());
  std::array<char, 2 * mac.size() + 1> digits;
  sodium_bin2hex(digits.data(), digits.size(), mac.data(), mac.size());
  return digits.data();
}

bool JobSecret::proves(const std::string& claimed, const std::vector<std::string>& parts) const {
  const std::string right = proof(parts);
  return claimed.size() == right.size() &&
         sodium_memcmp(claimed.data(), right.data(), right.size()) == 0;
}

std::string drawn_nonce() { return random_digits(); }

Challenge::Challenge(const JobSecret& secret, std::string purpose, Side side)
    : secret_(&secret), purpose_(std::move(purpose)), side_(side), mine_(drawn_nonce()) {}

std::string Challenge::side(bool mine) const {
  return mine == (side_ == Side::kConnects) ? "connects" : "accepts";
}

std::vector<std::string> Challenge::parts(bool mine) const {
  return {purpose_, side(mine), mine ? mine_ : theirs_, mine ? theirs_ : mine_};
}

Challenge::State Challenge::look(Store& store) {
  if (state_ != State::kOpen) return state_;
  const bool connects = side_ == Side::kConnects;
  if (connects && !std::exchange(begun_, true)) store.set("challenge", {{"nonce", mine_}});
  if (theirs_.empty()) {
    const auto said = store.take("challenge");
    if (!said) return nothing_else(store);
    theirs_ = text_in(*said, "nonce");
    if (theirs_.size() != mine_.size()) return state_ = State::kTurnedAway;
    if (connects) store.set("proof", {{"mac", secret_->proof(parts(true))}});
    if (!connects) store.set("challenge", {{"nonce", mine_}});
  }
  if (store.take("turned_away")) return state_ = State::kTurnedAway;
  const auto said = store.take("proof");
  return said ? judge(store, *said) : nothing_else(store);
}

// A client that sends anything else first is a stranger.
Challenge::State Challenge::nothing_else(const Store& store) {
  if (!store.empty()) state_ = State::kTurnedAway;
  return state_;
}

Challenge::State Challenge::judge(Store& store, const Json& said) {
  const bool right = secret_->proves(text_in(said, "mac"), parts(false));
  state_ = right ? State::kPassed : State::kTurnedAway;
  if (side_ == Side::kConnects) return state_;
  if (right) store.set("proof", {{"mac", secret_->proof(parts(true))}});
  if (!right) store.set("turned_away");
  return state_;
}

Challenge::State settle(Challenge& challenge, Store& store, StreamClock::time_point deadline) {
  while (true) {
    const Challenge::State state = challenge.look(store);
    if (state != Challenge::State::kOpen || store.closed()) return state;
    if (StreamClock::now() >= deadline) return state;
    wait_for_news({&store}, -1, deadline);
  }
}

namespace {

constexpr int kMaxAccepts = 64;  // at once, so that a connection flood delays no messages
constexpr std::chrono::milliseconds kNoDescriptors{100};

}  // namespace

Doorkeeper::Doorkeeper(const Listener& listener, const JobSecret& secret, std::string purpose,
                       std::string word, int expected)
    : listener_(&listener),
      secret_(&secret),
      purpose_(std::move(purpose)),
      word_(std::move(word)),
      most_outside_(kMaxStrangers + static_cast<size_t>(expected)),
      patience_(kPatience + expected * kPatienceEach) {}

void Doorkeeper::wait(std::vector<Store*> inside, StreamClock::time_point deadline) {
  const bool accepts = StreamClock::now() >= accepts_from_;
  if (!accepts) deadline = std::min(deadline, accepts_from_);
  for (Stranger& stranger : outside_) {
    inside.push_back(&stranger.store);
    deadline = std::min(deadline, stranger.until);
  }
  if (wait_for_news(inside, accepts ? listener_->fd() : -1, deadline)) accept_all();
}

// If no descriptor is left, drops the oldest stranger and accepts nobody for a moment, since the
// listening socket stays readable.
void Doorkeeper::accept_all() {
  for (int i = 0; i < kMaxAccepts; ++i) {
    UniqueFd socket = listener_->accept();
    if (!socket.valid()) {
      const bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (full && !outside_.empty()) outside_.pop_front();
      if (full) accepts_from_ = StreamClock::now() + kNoDescriptors;
      return;
    }
    if (outside_.size() >= most_outside_) outside_.pop_front();
    outside_.push_back({Store(std::move(socket)),
                        Challenge(*secret_, purpose_, Challenge::Side::kAccepts),
                        StreamClock::now() + patience_});
  }
}

std::vector<Store> Doorkeeper::let_in() {
  std::vector<Store> passed;
  for (auto stranger = outside_.begin(); stranger != outside_.end();) {
    const Challenge::State state = stranger->challenge.look(stranger->store);
    const bool ours = state == Challenge::State::kPassed && stranger->store.get(word_) != nullptr;
    if (ours) passed.push_back(std::move(stranger->store));
    turned_away_ += state == Challenge::State::kTurnedAway;
    const bool over = ours || state == Challenge::State::kTurnedAway || stranger->store.closed() ||
                      StreamClock::now() >= stranger->until;
    stranger = over ? outside_.erase(stranger) : std::next(stranger);
  }
  return passed;
}

}  // namespace ofsdp::fsdp
