#include "fsdp/comm/store/doorkeeper.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ofsdp::fsdp {
namespace {

constexpr int kMostAtOnce = 64;  // so that a flood of connections does not keep out what is said
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

// Without descriptors for more, those outside make room, and nobody is accepted for a moment: the
// listening socket stays readable.
void Doorkeeper::accept_all() {
  for (int i = 0; i < kMostAtOnce; ++i) {
    UniqueFd socket = listener_->accept();
    if (!socket.valid()) {
      const bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (full && !outside_.empty()) outside_.pop_front();
      if (full) accepts_from_ = StreamClock::now() + kNoDescriptors;
      return;
    }
    if (outside_.size() >= kMostStrangers) outside_.pop_front();
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
