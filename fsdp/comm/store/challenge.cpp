#include "fsdp/comm/store/challenge.h"

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

// Whoever says something else first is not one of us.
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

}  // namespace ofsdp::fsdp
