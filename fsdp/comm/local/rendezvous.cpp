#include "fsdp/comm/local/rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "fsdp/comm/store/stream_socket.h"
#include "kernels/base/host_tasks.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {
namespace {

// Room for one descriptor, aligned as the kernel requires.
union FdSlot {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

msghdr message_header(iovec& bytes, FdSlot& slot) {
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = slot.bytes;
  header.msg_controllen = sizeof slot.bytes;
  return header;
}

// Returns all descriptors in a message. A message should have one, but the slot's padding has room
// for a second.
std::vector<UniqueFd> attached_fds(msghdr& header) {
  std::vector<UniqueFd> fds;
  const cmsghdr* control = CMSG_FIRSTHDR(&header);
  if (control == nullptr || control->cmsg_type != SCM_RIGHTS) return fds;
  for (size_t at = CMSG_LEN(0); at + sizeof(int) <= control->cmsg_len; at += sizeof(int)) {
    int fd = -1;
    std::memcpy(&fd, reinterpret_cast<const char*>(control) + at, sizeof fd);
    fds.emplace_back(fd);
  }
  return fds;
}

constexpr char kFdFollows = 'F';

// Waits until the control page says why a connection closed: the peer failed, died or left.
Status why_closed(int peer, const PeerWait& wait, const CollectiveSite& site) {
  const std::atomic<uint64_t> never{0};
  return wait.until(never, 1, peer, site);
}

// Messages of a meeting, in order: the client sends LocalHello with a liveness pipe; the first
// rank sends Welcome with the control page (or with `go` 0), then, per other rank in rank order,
// kMagic with that rank's liveness pipe.

constexpr uint64_t kMagic = 0x6f66736470303031;  // "ofsdp001"
constexpr std::chrono::milliseconds kRetry{20};
constexpr int kNames = 4;  // names tried per rendezvous: another user may hold some
constexpr std::chrono::milliseconds kSpeakerHolds{500};
constexpr std::chrono::seconds kCallOffGrace{5};   // so that the first rank reports first
constexpr std::chrono::seconds kHelloPatience{2};  // for a client that sends no hello

struct LocalHello {
  uint64_t magic;
  int32_t place, here, pid;
  cpu_set_t cores;
};

struct Welcome {
  int32_t go;  // 0 if the meeting is off
  int32_t cores;
};

// An abstract address: no file, gone with the process.
struct LocalAddress {
  sockaddr_un name{};
  socklen_t bytes = 0;

  // The name's first byte is zero and the length counts.
  explicit LocalAddress(const std::string& rendezvous) {
    name.sun_family = AF_UNIX;
    std::string text = format_text("ofsdp-{}-{}", geteuid(), rendezvous);
    constexpr size_t kMax = sizeof name.sun_path - 1;
    if (text.size() > kMax) {
      const size_t hash = std::hash<std::string_view>{}(text);
      text = text.substr(0, kMax - 17) + format_text("-{:016x}", hash);
    }
    std::memcpy(name.sun_path + 1, text.data(), text.size());
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
};

// Returns the addresses of a rendezvous in the order in which ranks try them. The first is free
// unless another user has taken it on purpose.
std::vector<LocalAddress> addresses_of(const std::string& rendezvous) {
  std::vector<LocalAddress> all;
  for (int n = 0; n < kNames; ++n) {
    all.emplace_back(n == 0 ? rendezvous : format_text("{} {}", rendezvous, n));
  }
  return all;
}

struct LocalSocket {
  UniqueFd fd{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  const LocalAddress& at;

  explicit LocalSocket(const LocalAddress& address) : at(address) {}
  bool listens() const { return bind(fd.get(), address(), at.bytes) == 0; }
  // Does not block: the name's holder may let the socket's queue fill up.
  bool connects() const {
    fcntl(fd.get(), F_SETFL, O_NONBLOCK);
    const bool connected = connect(fd.get(), address(), at.bytes) == 0;
    fcntl(fd.get(), F_SETFL, 0);
    return connected;
  }

 private:
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&at.name); }
};

// Returns the user at the other end.
std::optional<uid_t> user_of(int socket) {
  ucred who{};
  socklen_t bytes = sizeof who;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) return std::nullopt;
  return who.uid;
}

bool same_user(int socket) { return user_of(socket) == geteuid(); }

// Limits how long a send may block, since the receiving rank may be stopped.
void limit_sends(int socket, std::chrono::seconds timeout) {
  const timeval limit{timeout.count(), 0};
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

Status open_liveness_pipe(LocalRendezvous& meeting, const LocalRank& self) {
  int ends[2];
  OFSDP_FAULT_IF(pipe2(ends, O_CLOEXEC) != 0, "rank {}: pipe: {}", self.rank(),
                 std::strerror(errno));
  meeting.liveness_pipes.resize(static_cast<size_t>(self.here()));
  meeting.liveness_pipes[static_cast<size_t>(self.place)] = UniqueFd(ends[0]);
  meeting.own_liveness_pipe = UniqueFd(ends[1]);
  return {};
}

LocalHello hello_of(const LocalRank& self) {
  LocalHello hello{};
  hello.magic = kMagic;
  hello.place = self.place;
  hello.here = self.here();
  hello.pid = getpid();
  sched_getaffinity(0, sizeof hello.cores, &hello.cores);
  return hello;
}

// ---- The first rank on the host ----

// Collects clients until all are there, then sends them the page and the pipes.
class Host {
 public:
  Host(const LocalRank& self, std::chrono::seconds timeout)
      : self_(self), timeout_(timeout), sockets_(self.ranks.size()), hellos_(self.ranks.size()) {}

  Result<LocalRendezvous> meet() {
    hellos_[0] = hello_of(self_);
    OFSDP_RETURN_IF_ERROR(open_liveness_pipe(meeting_, self_));
    Status collected = listen_here();
    while (collected.ok() && present_ < self_.here()) collected = admit_one();
    listener_.reset();
    if (collected.ok()) collected = welcome_all();
    if (collected.ok()) return finish();
    for (const UniqueFd& client : sockets_) {
      if (client.valid()) send_message(client.get(), Welcome{0, 0}, -1);
    }
    return collected;
  }

 private:
  Status listen_here() {
    while (true) {
      OFSDP_RETURN_IF_ERROR(take_a_name());
      if (listener_.valid()) break;
      OFSDP_FAULT_IF(StreamClock::now() >= deadline_,
                     "rank {} cannot listen at rendezvous {}: {} holds it", self_.rank(),
                     self_.rendezvous, holder_);
      std::this_thread::sleep_for(kRetry);
    }
    if (listen(listener_.get(), kMaxRanks) != 0) return fault("listen: {}", std::strerror(errno));
    return {};
  }

  // Takes the first name that no other user holds. Takes none if another run by this user holds
  // one.
  Status take_a_name() {
    for (const LocalAddress& address : addresses_) {
      LocalSocket socket(address);
      if (socket.listens()) {
        listener_ = std::move(socket.fd);
        return {};
      }
      OFSDP_FAULT_IF(errno != EADDRINUSE, "rank {} cannot listen at rendezvous {}: {}",
                     self_.rank(), self_.rendezvous, std::strerror(errno));
      const LocalSocket visitor(address);
      const auto user = visitor.connects() ? user_of(visitor.fd.get()) : std::nullopt;
      if (user) holder_ = *user == geteuid() ? "another run" : format_text("user {}", *user);
      if (user == geteuid()) return {};
    }
    return {};
  }

  Status admit_one() {
    if (!wait_ready(listener_.get(), POLLIN, deadline_)) return missing();
    UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid() || !same_user(client.get())) return {};
    LocalHello hello{};
    Received got = receive_message(client.get(), hello, kHelloPatience);
    if (got.kind != Received::Kind::kMessage || hello.magic != kMagic || !got.fd.valid()) return {};
    return admit(hello, std::move(client), std::move(got.fd));
  }

  Status admit(const LocalHello& hello, UniqueFd client, UniqueFd liveness_pipe) {
    if (hello.here != self_.here()) {
      send_message(client.get(), Welcome{0, 0}, -1);
      return input_error("rank {} (pid {}) expects {} ranks at rendezvous {}, rank {} expects {}",
                         hello.place, hello.pid, hello.here, self_.rendezvous, self_.rank(),
                         self_.here());
    }
    if (hello.place < 0 || hello.place >= self_.here()) return {};  // not a rank on this host
    const auto place = static_cast<size_t>(hello.place);
    if (place == 0 || sockets_[place].valid()) {
      send_message(client.get(), Welcome{0, 0}, -1);
      return input_error("two processes say that they are rank {} at rendezvous {}: pids {} and {}",
                         self_.ranks[place], self_.rendezvous, hellos_[place].pid, hello.pid);
    }
    limit_sends(client.get(), timeout_);
    sockets_[place] = std::move(client);
    meeting_.liveness_pipes[place] = std::move(liveness_pipe);
    hellos_[place] = hello;
    ++present_;
    return {};
  }

  Status missing() const {
    std::vector<int> ranks;
    for (size_t p = 1; p < sockets_.size(); ++p) {
      if (!sockets_[p].valid()) ranks.push_back(self_.ranks[p]);
    }
    return fault("rank {} did not arrive at rendezvous {} within {} s: {} of {} ranks are there",
                 joined(ranks, ", "), self_.rendezvous, timeout_.count(), present_, self_.here());
  }

  Status welcome_all() {
    OFSDP_ASSIGN_OR_RETURN(meeting_.page, ControlPage::create(self_.world));
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (size_t p = 0; p < hellos_.size(); ++p) {
      meeting_.page.rank(self_.ranks[p]).pid = hellos_[p].pid;
      CPU_OR(&cores, &cores, &hellos_[p].cores);
    }
    meeting_.cores = CPU_COUNT(&cores);
    // If a client has ended by now, the liveness pipe shows it.
    for (size_t client = 1; client < sockets_.size(); ++client) {
      const int socket = sockets_[client].get();
      send_message(socket, Welcome{1, meeting_.cores}, meeting_.page.fd());
      for (size_t of = 0; of < sockets_.size(); ++of) {
        if (of != client) send_message(socket, kMagic, meeting_.liveness_pipes[of].get());
      }
    }
    return {};
  }

  LocalRendezvous finish() {
    meeting_.links = PeerLinks(self_, std::move(sockets_));
    return std::move(meeting_);
  }

  const LocalRank& self_;
  std::chrono::seconds timeout_;
  StreamClock::time_point deadline_ = StreamClock::now() + timeout_;
  const std::vector<LocalAddress> addresses_ = addresses_of(self_.rendezvous);
  UniqueFd listener_;
  std::vector<UniqueFd> sockets_;
  std::vector<LocalHello> hellos_;
  int present_ = 1;
  std::string holder_ = "another process";  // for the message
  LocalRendezvous meeting_;
};

// ---- The others ----

// Returns the error if the first rank has not come. Several ranks may time out at the same moment,
// but only one should report: the one that can bind the speaker's address. It holds the address
// until the others have tried, and they return kPeer.
Status absent_first(const LocalRank& self, std::chrono::seconds timeout) {
  const LocalAddress address(self.rendezvous + " speaks");
  const LocalSocket speaker(address);
  if (!speaker.listens()) {
    return {ErrorKind::kPeer, format_text("rank {} is not there", self.ranks[0])};
  }
  std::this_thread::sleep_for(kSpeakerHolds);
  return fault("rank {} did not arrive at rendezvous {} within {} s: rank {} of {} cannot reach it",
               self.ranks[0], self.rendezvous, timeout.count(), self.rank(), self.here());
}

Result<UniqueFd> connect_to_first(const LocalRank& self, std::chrono::seconds timeout) {
  const auto deadline = StreamClock::now() + timeout;
  const std::vector<LocalAddress> addresses = addresses_of(self.rendezvous);
  while (true) {
    for (const LocalAddress& address : addresses) {
      LocalSocket first(address);
      if (!first.connects() || !same_user(first.fd.get())) continue;
      limit_sends(first.fd.get(), timeout);
      return std::move(first.fd);
    }
    if (StreamClock::now() >= deadline) return absent_first(self, timeout);
    std::this_thread::sleep_for(kRetry);
  }
}

// Returns the error if the first rank ended without a welcome. Only the second rank reports it.
Status no_welcome(const LocalRank& self) {
  if (self.place != 1) return {ErrorKind::kPeer, format_text("rank {} has ended", self.ranks[0])};
  return fault("rank {} ended before all {} ranks had met at rendezvous {}", self.ranks[0],
               self.here(), self.rendezvous);
}

Status receive_liveness_pipes(LocalRendezvous& meeting, int socket, const LocalRank& self,
                              std::chrono::seconds timeout) {
  for (int of = 0; of < self.here(); ++of) {
    if (of == self.place) continue;
    uint64_t magic = 0;
    Received got = receive_message(socket, magic, timeout);
    if (got.kind != Received::Kind::kMessage) return no_welcome(self);
    if (!got.fd.valid()) return fault("rank {}: no descriptors left (ulimit -n)", self.rank());
    meeting.liveness_pipes[static_cast<size_t>(of)] = std::move(got.fd);
  }
  return {};
}

Result<LocalRendezvous> visit(const LocalRank& self, std::chrono::seconds timeout) {
  LocalRendezvous meeting;
  OFSDP_RETURN_IF_ERROR(open_liveness_pipe(meeting, self));
  OFSDP_ASSIGN_OR_RETURN(UniqueFd socket, connect_to_first(self, timeout));
  const int liveness_pipe = meeting.liveness_pipes[static_cast<size_t>(self.place)].get();
  if (!send_message(socket.get(), hello_of(self), liveness_pipe)) return no_welcome(self);
  Welcome welcome{};
  Received got = receive_message(socket.get(), welcome, timeout + kCallOffGrace);
  if (got.kind != Received::Kind::kMessage) return no_welcome(self);
  if (welcome.go == 0) return Status(ErrorKind::kPeer, "the first rank called the rendezvous off");
  OFSDP_ASSIGN_OR_RETURN(meeting.page, ControlPage::map(std::move(got.fd), self.world));
  OFSDP_RETURN_IF_ERROR(receive_liveness_pipes(meeting, socket.get(), self, timeout));
  meeting.cores = welcome.cores;
  std::vector<UniqueFd> sockets;
  sockets.push_back(std::move(socket));
  meeting.links = PeerLinks(self, std::move(sockets));
  return meeting;
}

}  // namespace

bool send_bytes(int socket, const void* message, size_t bytes, int fd) {
  iovec part{const_cast<void*>(message), bytes};
  FdSlot slot{};
  msghdr header = message_header(part, slot);
  if (fd < 0) {
    header.msg_control = nullptr;
    header.msg_controllen = 0;
  } else {
    cmsghdr* control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(control), &fd, sizeof fd);
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

Received receive_bytes(int socket, void* message, size_t bytes,
                       std::chrono::milliseconds patience) {
  if (!wait_ready(socket, POLLIN, StreamClock::now() + patience))
    return {Received::Kind::kTimeout, {}};
  iovec part{message, bytes};
  FdSlot slot{};
  msghdr header = message_header(part, slot);
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return {};
  std::vector<UniqueFd> fds = attached_fds(header);
  const bool whole = got == static_cast<ssize_t>(bytes) && (header.msg_flags & MSG_TRUNC) == 0;
  // MSG_CTRUNC with a descriptor means that there were more; without one, that this process cannot
  // open another.
  const bool more = fds.size() > 1 || (!fds.empty() && (header.msg_flags & MSG_CTRUNC) != 0);
  if (!whole || more) return {};
  return {Received::Kind::kMessage, fds.empty() ? UniqueFd() : std::move(fds[0])};
}

Status PeerLinks::send(int peer, int fd, const PeerWait& wait, const CollectiveSite& site) {
  if (send_message(socket_of(peer), kFdFollows, fd)) return {};
  return why_closed(self_.ranks[static_cast<size_t>(peer)], wait, site);
}

Result<UniqueFd> PeerLinks::receive(int peer, const PeerWait& wait, const CollectiveSite& site) {
  const int rank = self_.ranks[static_cast<size_t>(peer)];
  const auto slices = wait.timeout() / PeerWait::kSlice + 1;
  WaitNote note = wait.note(rank);
  for (int64_t slice = 0; slice < slices; ++slice, note.renew()) {
    char kind = 0;
    Received got = receive_message(socket_of(peer), kind, PeerWait::kSlice);
    if (got.kind == Received::Kind::kMessage) {
      note.clear();
      if (!got.fd.valid()) return fault("rank {}: no descriptors left (ulimit -n)", self_.rank());
      return std::move(got.fd);
    }
    if (got.kind == Received::Kind::kClosed) return why_closed(rank, wait, site);
    OFSDP_RETURN_IF_ERROR(wait.check(site));
  }
  note.extend();
  return wait.timeout_error(rank, site);
}

Result<std::vector<UniqueFd>> PeerLinks::all_gather_fds(int mine, const PeerWait& wait,
                                                        const CollectiveSite& site) {
  const int place = self_.place, here = self_.here();
  std::vector<UniqueFd> all(static_cast<size_t>(here));
  if (place != 0) OFSDP_RETURN_IF_ERROR(send(0, mine, wait, site));
  for (int peer = 0; peer < here; ++peer) {
    if (peer == place) continue;
    OFSDP_ASSIGN_OR_RETURN(all[static_cast<size_t>(peer)],
                           receive(place == 0 ? peer : 0, wait, site));
  }
  if (place != 0) return all;
  for (int to = 1; to < here; ++to) {
    for (int of = 0; of < here; ++of) {
      const int fd = of == 0 ? mine : all[static_cast<size_t>(of)].get();
      if (of != to) OFSDP_RETURN_IF_ERROR(send(to, fd, wait, site));
    }
  }
  return all;
}

Result<UniqueFd> PeerLinks::broadcast_fd(int mine, const PeerWait& wait,
                                         const CollectiveSite& site) {
  if (self_.place != 0) return receive(0, wait, site);
  for (int peer = 1; peer < self_.here(); ++peer)
    OFSDP_RETURN_IF_ERROR(send(peer, mine, wait, site));
  return UniqueFd();
}

LocalRank only_host(const RankIdentity& identity) {
  LocalRank self{.ranks = std::vector<int>(static_cast<size_t>(identity.world)),
                 .place = identity.rank,
                 .world = identity.world,
                 .rendezvous = identity.rendezvous};
  std::iota(self.ranks.begin(), self.ranks.end(), 0);
  return self;
}

Result<LocalRendezvous> meet(const LocalRank& self, std::chrono::seconds timeout) {
  OFSDP_REJECT_IF(self.world > kMaxRanks, "{} ranks, expected at most {}", self.world, kMaxRanks);
  return self.place == 0 ? Host(self, timeout).meet() : visit(self, timeout);
}

// ---- After the meeting ----

Result<std::unique_ptr<PeerMonitor>> PeerMonitor::start(const ControlPage* page,
                                                        const LocalRank& self,
                                                        std::vector<UniqueFd> liveness_pipes) {
  UniqueFd stop_event(eventfd(0, EFD_CLOEXEC));
  if (!stop_event.valid()) return fault("eventfd: {}", std::strerror(errno));
  std::unique_ptr<PeerMonitor> monitor(
      new PeerMonitor(page, self.ranks, std::move(liveness_pipes), std::move(stop_event)));
  for (int p = 0; p < self.here(); ++p) {
    const int fd = p == self.place ? -1 : monitor->liveness_pipes_[static_cast<size_t>(p)].get();
    monitor->events_.push_back({fd, 0, 0});  // poll skips -1, and always reports a hang-up
  }
  monitor->events_.push_back({monitor->stop_event_.get(), POLLIN, 0});
  auto started =
      start_thread("ofsdp-peers", "the monitor of peers", [raw = monitor.get()] { raw->watch(); });
  if (!started.ok()) {  // the others learn it from the page
    if (page->claim_failure(self.rank(), 1)) return std::move(started).status();
    return Status(ErrorKind::kPeer, "another rank has failed");
  }
  monitor->thread_ = *std::move(started);
  return monitor;
}

void PeerMonitor::stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_event_.get(), &one, sizeof one);
  thread_.join();
}

void PeerMonitor::watch() {
  while (true) {
    if (poll(events_.data(), events_.size(), -1) < 0) continue;  // EINTR
    if (events_.back().revents != 0) return;
    for (size_t p = 0; p + 1 < events_.size(); ++p) {
      if (events_[p].fd < 0 || events_[p].revents == 0) continue;
      if (lost(ranks_[p])) return;
      events_[p].fd = -1;
    }
  }
}

// Returns true if nothing is left to watch for: the first death or failure ends the run.
bool PeerMonitor::lost(int rank) {
  if (page_->run().failed.load() != 0) return true;  // ranks end because of that failure
  if (page_->rank(rank).left.load() != 0) return false;
  page_->note_death(rank);
  return true;
}

}  // namespace ofsdp::fsdp
