// HostLink's part in failures: hosts tell each other about one, agree on the rank that prints it,
// and find the rank to blame for a wait. [Note: one message] in host_link.h gives the rule.
#include <cerrno>

#include "fsdp/comm/hosts/host_link.h"
#include "fsdp/comm/local/peer_wait.h"

namespace ofsdp::fsdp {
namespace {

constexpr std::chrono::milliseconds kVerdictPatience{2000};
constexpr std::chrono::milliseconds kBlamePatience{1000};
constexpr std::chrono::milliseconds kOthersPatience{1000};  // the others check every 0.1 s

}  // namespace

// A connection that ends means a death, unless the rank had left in order or a failure is known.
void HostLink::lost(LinkLine& line, int error) {
  if (!line.open()) return;
  line.close();
  line.deferred.clear();
  if (asked_for_other_ == line.peer()) asked_for_other_ = -1;
  const std::lock_guard lock(mutex_);
  if (asked_ && asked_peer_ == line.peer()) asked_ = false;  // ask another peer
  if (page_->run().failed.load() != 0) return;
  const bool ended = error == 0 || error == ECONNRESET || error == EPIPE;
  if (!line.left) return page_->note_death(line.peer(), /*cut=*/!ended);
  for (size_t place = 0; place < pending_.size(); ++place) {
    const LinkRequest& request = pending_[place];
    const bool pending = ids_[place] == request.header.id;
    if (pending && request.server == line.peer()) return page_->note_gone(line.peer());
  }
}

void HostLink::engine_failed() {
  for (auto& line : lines_) {
    if (line->open()) return lost(*line, EPROTO);
  }
}

// Tells all other hosts about this host's first failure. If another rank on this host failed, asks
// the arbiter on behalf of that rank, which may not reach it.
void HostLink::relay_failure() {
  const uint32_t failed = page_->run().failed.load();
  if (failed == 0 || relayed_) return;
  relayed_ = true;
  LinkHeader header{.rank = failed_rank(failed), .value = failed};
  const bool of_other = header.rank != map_->rank && map_->is_here(header.rank);
  const LinkLine* const asked = of_other ? arbiter() : nullptr;
  if (asked != nullptr) asked_for_other_ = asked->peer();
  for (auto& line : lines_) {
    header.kind = line.get() == asked ? LinkKind::kClaim : LinkKind::kFailed;
    line->queue(header);
  }
}

LinkLine* HostLink::line_to_host(int host) {
  for (auto& line : lines_) {
    if (line->open() && map_->host_of[static_cast<size_t>(line->peer())] == host) return line.get();
  }
  return nullptr;
}

// Returns the line to the first host in order that can be reached and precedes this one, or null.
LinkLine* HostLink::arbiter() {
  for (int host = 0; host < map_->host(); ++host) {
    if (LinkLine* line = line_to_host(host)) return line;
  }
  return nullptr;
}

// The arbiter decides who prints. If it has ended since, the verdict may have reached this rank
// (heard_) or another rank on this host (verdict_of).
HostLink::Decision HostLink::decision() {
  for (int host = 0; host < map_->host(); ++host) {
    const auto index = static_cast<size_t>(host);
    if (const uint32_t heard = heard_[index]; heard != 0) {
      return {heard >> 8 == static_cast<uint32_t>(map_->rank) + 1};
    }
    if (const auto told = page_->verdict_of(host)) return {told};
    if (LinkLine* const line = line_to_host(host)) return {std::nullopt, line};
    const bool others = map_->here().size() > 1 && map_->hosts[index].size() > 1;
    if (others && std::chrono::steady_clock::now() < others_until_) return {};
  }
  return {true};  // no arbiter: this host decides
}

// Sends the open question to the rank that can answer it; if that line is lost, to another one.
void HostLink::ask() {
  const std::lock_guard lock(mutex_);
  if (question_ == Question::kNone || replied_) return;
  Decision next;
  if (question_ == Question::kClaim) {
    next = decision();
  } else {
    next.line = line_to_host(map_->host_of[static_cast<size_t>(question_header_.rank)]);
    if (next.line == nullptr) next.verdict = false;
  }
  if (next.verdict) {
    set_reply(question_header_);
    reply_header_.value = *next.verdict ? 1 : 0;
  } else if (next.line != nullptr && !asked_) {
    asked_peer_ = next.line->peer();
    next.line->queue(question_header_);
    asked_ = true;
  }
}

std::optional<LinkHeader> HostLink::put_question(Question question, const LinkHeader& header,
                                                 std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  question_ = question;
  question_header_ = header;
  question_header_.id = ++questions_;
  asked_ = replied_ = false;
  others_until_ = std::chrono::steady_clock::now() + kOthersPatience;
  wake();
  const bool came = answered_.wait_for(lock, patience, [this] { return replied_; });
  question_ = Question::kNone;
  return came ? std::optional(reply_header_) : std::nullopt;
}

void HostLink::take_reply(const LinkLine& line, const LinkHeader& header) {
  if (header.kind == LinkKind::kVerdict && header.rank != map_->rank) {
    page_->note_verdict(map_->host_of[static_cast<size_t>(line.peer())], header.value == 1);
    asked_for_other_ = -1;
    return;
  }
  const std::lock_guard lock(mutex_);
  const bool wanted =
      question_ == (header.kind == LinkKind::kVerdict ? Question::kClaim : Question::kWho);
  if (!wanted || replied_ || header.id != question_header_.id) return;  // too late
  set_reply(header);
}

// REQUIRES: the mutex is held.
void HostLink::set_reply(const LinkHeader& header) {
  reply_header_ = header;
  replied_ = true;
  answered_.notify_all();
}

bool HostLink::claim(uint32_t failure) {
  const LinkHeader claim{.kind = LinkKind::kClaim, .rank = map_->rank, .value = failure};
  const auto verdict = put_question(Question::kClaim, claim, kVerdictPatience);
  return !verdict || verdict->value == 1;
}

// Asks host after host, since the rank that a host names may wait for a rank on a third host. A
// rank may wait for several but names only one, so the chain can be a circle: then the culprit is a
// rank that waits for nobody.
int HostLink::blame(int rank) {
  for (size_t hop = 0; hop < map_->hosts.size() && !map_->is_here(rank); ++hop) {
    const int host = map_->host_of[static_cast<size_t>(rank)];
    const LinkHeader who{.kind = LinkKind::kWho, .rank = rank};
    const auto found = put_question(Question::kWho, who, kBlamePatience);
    if (!found) return map_->server(host, map_->rank);
    if (found->rank < 0 || found->rank >= map_->world()) return rank;
    rank = found->rank;
    if (found->value != 0) return idle_anywhere(rank);
    if (map_->host_of[static_cast<size_t>(rank)] == host) return rank;
  }
  const bool known = map_->is_here(rank) && !is_waiting(page_->rank(rank));
  return known ? rank : idle_anywhere(rank);
}

// Returns a rank on this host that waits for nobody and has not left, or -1.
int HostLink::idle_here() const {
  for (const int r : map_->here()) {
    const RankState& state = page_->rank(r);
    if (state.left.load() == 0 && !is_waiting(state)) return r;
  }
  return -1;
}

int HostLink::idle_anywhere(int otherwise) {
  if (const int here = idle_here(); here >= 0) return here;
  for (int host = 0; host < static_cast<int>(map_->hosts.size()); ++host) {
    if (host == map_->host()) continue;
    const int server = map_->server(host, map_->rank);
    const LinkHeader who{.kind = LinkKind::kWho, .rank = server, .value = 1};
    const auto found = put_question(Question::kWho, who, kBlamePatience);
    if (!found) return server;
    if (found->rank >= 0 && found->rank < map_->world()) return found->rank;
  }
  return otherwise;
}

void HostLink::take_failed(const LinkLine& line, const LinkHeader& header) {
  const auto failure = static_cast<uint32_t>(header.value);
  const int host = map_->host_of[static_cast<size_t>(line.peer())];
  uint32_t& heard = heard_[static_cast<size_t>(host)];
  if (heard == 0) heard = failure;
  page_->take_failure(failure);
  if (host < map_->host()) page_->note_verdict(host, page_->run().failed.load() == failure);
}

// The first claim that arrives here wins.
void HostLink::take_claim(LinkLine& line, const LinkHeader& header) {
  page_->take_failure(static_cast<uint32_t>(header.value));
  LinkHeader verdict = header;
  verdict.kind = LinkKind::kVerdict;
  verdict.value = failed_rank(page_->run().failed.load()) == header.rank;
  line.queue(verdict);
}

void HostLink::take_who(LinkLine& line, const LinkHeader& header) {
  if (header.rank < 0 || header.rank >= map_->world()) return lost(line, EPROTO);
  LinkHeader answer = header;
  answer.kind = LinkKind::kBlame;
  answer.value = 0;
  if (header.value == 1) {
    answer.rank = idle_here();
    return line.queue(answer);
  }
  for (const LinkHeader& waiting : line.deferred) {
    const int late = well_formed(waiting) ? missing(waiting) : -1;
    if (late < 0) continue;
    answer.rank = late;
    break;
  }
  answer.rank = end_of_chain(*page_, answer.rank);
  answer.value = map_->is_here(answer.rank) && is_waiting(page_->rank(answer.rank)) ? 1 : 0;
  line.queue(answer);
}

}  // namespace ofsdp::fsdp
