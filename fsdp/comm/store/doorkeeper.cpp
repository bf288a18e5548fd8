#include "fsdp/comm/store/doorkeeper.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ofsdp::fsdp {
namespace {

std::string text_in(const Json& value, const char* name) {
  std::string text;
  StoreFields(value).text(name, text);
  return text;
}

}  // namespace

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

constexpr int kMaxAccepts = 64;  // at once, so that a flood of connections delays no messages
constexpr std::chrono::milliseconds kNoDescriptors{100};

}  // namespace

Doorkeeper::Doorkeeper(const Listener& listener, const JobSecret& secret, std::string purpose,
                       std::string word)
    : listener_(&listener),
      secret_(&secret),
      purpose_(std::move(purpose)),
      word_(std::move(word)) {}

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
    if (outside_.size() >= kMaxStrangers) outside_.pop_front();
    outside_.push_back({Store(std::move(socket)),
                        Challenge(*secret_, purpose_, Challenge::Side::kAccepts),
                        StreamClock::now() + kPatience});
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
