#include "fsdp/comm/hosts/meeting_watch.h"

#include <poll.h>

#include <algorithm>

namespace ofsdp::fsdp {
namespace {

constexpr std::chrono::seconds kLastReports{2};  // of those that wait in vain
constexpr std::chrono::seconds kVerdict{5};      // longer than rank 0 waits for reports

}  // namespace

MeetingWatch::MeetingWatch(HostMap map, std::vector<HostConnection> sockets,
                           std::vector<std::string> who, std::string point,
                           std::chrono::seconds timeout)
    : map_(std::move(map)),
      sockets_(std::move(sockets)),
      who_(std::move(who)),
      point_(std::move(point)),
      timeout_(timeout),
      deadline_(StreamClock::now() + timeout),
      stages_(who_.size()),
      late_(who_.size()) {}

std::chrono::seconds MeetingWatch::left() const {
  const auto left = std::chrono::ceil<std::chrono::seconds>(deadline_ - StreamClock::now());
  return std::max(left, std::chrono::seconds(1));
}

Status MeetingWatch::readable(int fd) {
  while (!over_ && !is_late()) {
    std::vector<pollfd> events{{fd, POLLIN, 0}};
    for (const HostConnection& c : sockets_) events.push_back({c.socket.get(), POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - StreamClock::now());
    const auto most = std::clamp<int64_t>(left.count(), 0, 1 << 30);
    if (poll(events.data(), events.size(), static_cast<int>(most)) <= 0) continue;
    for (size_t i = 0; i < sockets_.size(); ++i) {
      if (events[i + 1].revents != 0) OFSDP_RETURN_IF_ERROR(hear(sockets_[i]));
    }
    if (events[0].revents != 0 || fd < 0) return {};
  }
  return {};
}

Status MeetingWatch::hear(HostConnection& from) {
  Status status = map_.rank == 0 ? hear_report(from) : hear_verdict(from);
  if (!status.ok()) over_ = true;
  if (!status.ok() && map_.rank == 0) send_all(0);
  return status;
}

Status MeetingWatch::hear_report(HostConnection& from) {
  HostReport report;
  const auto patience = StreamClock::now() + kStrangerPatience;
  if (!receive_whole(from.socket.get(), &report, sizeof report, patience) ||
      report.magic != kHostMagic) {
    return fault("{} ended before all ranks had met at {}", who(from.peer), point_);
  }
  const auto rank = static_cast<size_t>(from.peer);
  const std::string text = get_text(report.text);
  switch (report.kind) {
    case HostReport::kConnected:
      stages_[rank] = Stage::kConnected;
      return {};
    case HostReport::kMet:
      stages_[rank] = Stage::kMet;
      return {};
    case HostReport::kLate:
      late_[rank] = true;
      if (late_text_.empty()) late_text_ = text;
      return {};
    default:
      return {report.kind == HostReport::kInput ? ErrorKind::kInput : ErrorKind::kFault, text};
  }
}

Status MeetingWatch::hear_verdict(HostConnection& from) {
  HostWelcome verdict;
  const auto patience = StreamClock::now() + kStrangerPatience;
  if (!receive_whole(from.socket.get(), &verdict, sizeof verdict, patience)) {
    Status ended = fault("{} ended before all ranks had met at {}", who(0), point_);
    if (map_.place() == 0) return ended;
    return {ErrorKind::kPeer, ended.message()};
  }
  if (verdict.go == 0) return {ErrorKind::kPeer, "rank 0 called the meeting off"};
  over_ = true;
  return {};
}

void MeetingWatch::report(HostReport::Kind kind, const Status& status) {
  HostReport report;
  report.kind = kind;
  if (!status.ok()) put_text(report.text, status.message());
  const auto patience = StreamClock::now() + kStrangerPatience;
  for (const HostConnection& c : sockets_) {
    send_whole(c.socket.get(), &report, sizeof report, patience);
  }
}

void MeetingWatch::connected() {
  stages_[static_cast<size_t>(map_.rank)] = Stage::kConnected;
  if (map_.rank != 0) report(HostReport::kConnected, {});
}

Status MeetingWatch::conclude(Status mine) {
  if (over_) return mine;
  if (map_.rank == 0) return conclude_all(std::move(mine));
  const bool waited = !mine.ok() && (is_late() || mine.kind() == ErrorKind::kPeer);
  const bool wrong = !mine.ok() && mine.kind() == ErrorKind::kInput;
  report(mine.ok() ? HostReport::kMet
         : waited  ? HostReport::kLate
         : wrong   ? HostReport::kInput
                   : HostReport::kFailed,
         mine);
  deadline_ = std::max(deadline_, StreamClock::now()) + kVerdict;
  while (!over_ && !is_late()) OFSDP_RETURN_IF_ERROR(readable(-1));
  if (over_ && mine.ok()) return {};
  Status unheard = fault("{} did not say within {} s whether all ranks had met at {}", who(0),
                         timeout_.count(), point_);
  if (map_.place() == 0) return unheard;
  return {ErrorKind::kPeer, unheard.message()};
}

// At rank 0.
Status MeetingWatch::conclude_all(Status mine) {
  over_ = !mine.ok() && !is_late();
  if (mine.ok()) stages_[0] = Stage::kMet;
  late_[0] = !mine.ok();
  if (!mine.ok() && late_text_.empty()) late_text_ = mine.message();
  deadline_ = std::max(deadline_, StreamClock::now()) + kLastReports;
  while (!over_ && !is_late() && !all_have_spoken()) OFSDP_RETURN_IF_ERROR(readable(-1));
  const auto met = [](Stage stage) { return stage == Stage::kMet; };
  const bool all = std::ranges::all_of(stages_, met);
  send_all(all ? 1 : 0);
  if (all || over_) return mine;
  over_ = true;
  return missing();
}

bool MeetingWatch::all_have_spoken() const {
  for (size_t r = 0; r < stages_.size(); ++r) {
    if (stages_[r] != Stage::kMet && !late_[r]) return false;
  }
  return true;
}

// Who has said nothing is missing, also where others have said whom they wait for. Of those that
// meet on their host the first one is the one that the others wait for.
Status MeetingWatch::missing() const {
  std::vector<int> absent, silent;
  const auto connected =
      std::ranges::count_if(stages_, [](Stage s) { return s != Stage::kAbsent; });
  for (int r = 0; r < map_.world(); ++r) {
    const auto index = static_cast<size_t>(r);
    if (late_[index] || stages_[index] == Stage::kMet) continue;
    if (stages_[index] == Stage::kAbsent) absent.push_back(r);
    if (map_.place_of[index] == 0) silent.push_back(r);
  }
  if (absent.empty() && !late_text_.empty()) return fault("{}", late_text_);
  std::vector<std::string> names;
  for (const int r : absent.empty() ? silent : absent) names.push_back(who(r));
  return fault("{} did not arrive at {} within {} s: {} of {} ranks are connected",
               joined(names, ", "), point_, timeout_.count(), connected, map_.world());
}

void MeetingWatch::send_all(int go) const {
  const HostWelcome verdict{kHostMagic, go, map_.world(), 0};
  for (const HostConnection& c : sockets_) {
    send_whole(c.socket.get(), &verdict, sizeof verdict, StreamClock::now() + kStrangerPatience);
  }
}

}  // namespace ofsdp::fsdp
