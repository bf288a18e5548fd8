#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/hosts/host_collectives.h"
#include "fsdp/comm/local/rendezvous.h"
#include "fsdp/comm/rank_identity.h"
#include "kernels/base/process.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {
namespace {

// If every rank on one host has a core, a peer comes soon and is worth a short spin; else it needs
// this core. Between hosts a wait is always long.
constexpr std::chrono::microseconds kSpin{10};
constexpr std::chrono::microseconds kSpinCrowded{1};
constexpr std::chrono::microseconds kSpinHosts{5};
constexpr std::chrono::milliseconds kLastWords{1000};

std::chrono::microseconds spin_time(const HostMap& map, const LocalRendezvous& meeting) {
  if (map.hosts.size() > 1) return kSpinHosts;
  return meeting.cores >= map.world() ? kSpin : kSpinCrowded;
}

// link_ is null if all ranks are on one host.
class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(HostMap map, LocalRendezvous meeting, std::chrono::seconds timeout)
      : map_(std::move(map)),
        own_liveness_pipe_(std::move(meeting.own_liveness_pipe)),
        page_(std::move(meeting.page)),
        links_(std::move(meeting.links)),
        wait_(&page_, map_.rank, timeout, spin_time(map_, meeting)) {}

  Status connect(HostsRendezvous& hosts, std::unique_ptr<PayloadEngine> engine) {
    OFSDP_ASSIGN_OR_RETURN(link_, HostLink::start(&map_, &page_, hosts, std::move(engine)));
    wait_.set_hosts({.name = [this](int rank) { return map_.names[static_cast<size_t>(rank)]; },
                     .is_here = [this](int rank) { return map_.is_here(rank); },
                     .blame = [this](int rank) { return link_->blame(rank); }});
    return {};
  }

  Status watch(std::vector<UniqueFd> liveness_pipes) {
    OFSDP_ASSIGN_OR_RETURN(monitor_,
                           PeerMonitor::start(&page_, links_.self(), std::move(liveness_pipes)));
    return {};
  }

  int rank() const override { return map_.rank; }
  int size() const override { return map_.world(); }
  std::string name() const override { return link_ ? link_->name() : "local"; }
  int ranks_on_each_host() const override {
    const auto here = static_cast<int>(map_.hosts[0].size());
    for (int r = 0; r < size(); ++r) {
      if (map_.host_of[static_cast<size_t>(r)] != r / here) return 0;
    }
    return size() == here * hosts() ? here : 0;
  }
  bool is_first_on_host() const override { return map_.place() == 0; }
  size_t staging_bytes() const override { return link_ ? HostStaging::bytes(hosts()) : 0; }

  Result<std::byte*> allocate_shared(MemoryLedger& ledger, size_t bytes, Sizes sizes) override {
    OFSDP_RETURN_IF_ERROR(
        segments_.allocate(links_, wait_, ledger, staging_bytes(), bytes, sizes == Sizes::kEqual));
    const HostParts parts{&map_, &page_, &wait_, link_.get(), &segments_};
    const HostStaging staging(hosts());
    gather_.emplace(parts, staging);
    reductions_.emplace(parts, staging);
    if (link_) {
      link_->serve({&segments_, const_cast<std::byte*>(staging.outgoing(segments_.own())),
                    HostStaging::kOutgoing});
    }
    return segments_.own();
  }

  int ranks_in_common() const override { return std::max(ranks_on_each_host(), 1); }
  Result<std::byte*> allocate_common(MemoryLedger& ledger, size_t whole, size_t part) override {
    return segments_.allocate_common(links_, wait_, ledger, whole, part);
  }

  Status all_gather(const RankGroup& group, const ShardSource& source, std::byte* dst,
                    DType dst_dtype, const CollectiveSite& site) override {
    OFSDP_RETURN_IF_ERROR(wait_.check(site));
    if (source.numel == 0 && source.parts.empty()) return {};
    GroupView& view = find_view(group);
    for (size_t k = 0; k < view.here.size(); ++k) {
      const int peer = view.peer(k);
      const RankPart part = source.of(group.index_of(peer));
      const std::byte* segment = segments_.of(map_.place_of[static_cast<size_t>(peer)]);
      convert_elements(segment + part.offset, source.dtype,
                       dst + static_cast<size_t>(part.begin) * dtype_size(dst_dtype), dst_dtype,
                       part.numel);
    }
    if (view.others == 0) return {};
    Status status = gather_->gather(view, source, dst, dst_dtype, site);
    if (!status.ok()) link_->abandon_shards();
    return status;
  }

  Status acquire(int channel, const RankGroup& group, const CollectiveSite& site) override {
    OFSDP_RETURN_IF_ERROR(wait_.check(site));
    return reductions_->acquire(channel, find_view(group), site);
  }

  void post(int channel, const RankGroup& group, const SlotSource& slot) override {
    reductions_->post(channel, find_view(group), slot);
  }

  Status reduce_scatter(int channel, const RankGroup& group, const SlotSource& slot, BlockSink sink,
                        const CollectiveSite& site) override {
    OFSDP_RETURN_IF_ERROR(wait_.check(site));
    return reductions_->reduce_scatter(channel, find_view(group), slot, sink, site);
  }

  Status all_reduce(int channel, const RankGroup& group, const SlotSource& slot,
                    const CollectiveSite& site) override {
    OFSDP_RETURN_IF_ERROR(wait_.check(site));
    return reductions_->all_reduce(channel, find_view(group), slot, site);
  }

  // Two payloads alternate: a rank that begins exchange k + 2 has seen all begin k + 1, so all have
  // read k.
  Status exchange(std::span<const double> mine, std::span<double> all,
                  const CollectiveSite& site) override {
    const auto ranks = static_cast<size_t>(size());
    OFSDP_CHECK(mine.size() <= kMaxExchange && all.size() == mine.size() * ranks,
                "{} doubles of {} ranks into {}", mine.size(), ranks, all.size());
    OFSDP_RETURN_IF_ERROR(wait_.check(site));
    RankState& me = page_.rank(rank());
    const uint64_t turn = me.sequence.load(std::memory_order_relaxed) + 1;
    if (link_) link_->take_turn();
    std::copy(mine.begin(), mine.end(), me.payload[turn % 2]);
    page_.publish(me.sequence, turn, rank());
    if (link_) link_->nudge();
    if (link_ && is_first_on_host()) ask_hosts(turn, mine.size());
    for (size_t r = 0; r < ranks; ++r) {
      const RankState& peer = page_.rank(static_cast<int>(r));
      OFSDP_RETURN_IF_ERROR(wait_.until(peer.sequence, turn, static_cast<int>(r), site));
      std::copy_n(peer.payload[turn % 2], mine.size(),
                  all.begin() + static_cast<std::ptrdiff_t>(r * mine.size()));
    }
    if (link_) link_->take_turn();
    return {};
  }

  Status barrier(const CollectiveSite& site) override { return exchange({}, {}, site); }
  Status check(const CollectiveSite& site) const override { return wait_.check(site); }

  Result<std::span<const std::byte>> share_from_rank0(
      MemoryLedger& ledger, size_t bytes, const std::string& name,
      Status (*fill)(void* context, std::span<std::byte> bytes), void* context) override {
    return segments_.share(links_, wait_, ledger, bytes, name, fill, context);
  }

  bool fail(const Status& status) override {
    if (status.kind() == ErrorKind::kPeer) return false;
    const int exit = status.kind() == ErrorKind::kInput ? 2 : 1;
    if (!page_.claim_failure(rank(), exit)) return false;
    if (!link_) return true;
    const bool first = link_->claim(failure_word(rank(), exit));
    link_->settle(kLastWords);
    return first;
  }

  int exit_status() const override { return page_.exit_status(); }
  int64_t waited() const override { return wait_.waited().count(); }

  // With several hosts all ranks leave together, since others may still read this rank's shards.
  Status leave() override {
    if (!link_) monitor_->stop();
    page_.note_leave(rank());
    if (!link_) return {};
    link_->say_leave();
    Status status = await_leaving();
    if (!status.ok() && status.kind() != ErrorKind::kPeer && wait_.check({}).ok()) return status;
    link_->settle(kLastWords);
    monitor_->stop();
    return {};
  }

 private:
  int hosts() const { return static_cast<int>(map_.hosts.size()); }

  // Waits for all ranks. The caller ignores deaths: a dead rank can no longer read this one's
  // shards.
  Status await_leaving() const {
    for (int r = 0; r < size(); ++r) {
      const auto left = [&] { return page_.rank(r).left.load() != 0; };
      OFSDP_RETURN_IF_ERROR(
          wait_.until_ready(left, r, r, {.collective = "end of the run", .step = -1}));
    }
    return {};
  }

  // Requests all other hosts' payloads. The first rank on a host does so for all.
  void ask_hosts(uint64_t turn, size_t count) {
    for (int host = 0; host < hosts(); ++host) {
      if (host == map_.host()) continue;
      const size_t ranks = map_.hosts[static_cast<size_t>(host)].size();
      link_->request({.server = map_.server(host, rank()),
                      .header = {.kind = LinkKind::kExchange,
                                 .numel = static_cast<int64_t>(count),
                                 .round = turn},
                      .bytes = count * sizeof(double) * ranks});
    }
  }

  GroupView& find_view(const RankGroup& group) {
    for (const auto& view : views_) {
      if (view->group == group) return *view;
    }
    views_.push_back(std::make_unique<GroupView>(GroupView::make(map_, group)));
    return *views_.back();
  }

  const HostMap map_;
  UniqueFd own_liveness_pipe_;  // closed after the monitor and the page
  ControlPage page_;
  PeerLinks links_;
  PeerWait wait_;
  PeerSegments segments_;
  std::vector<std::unique_ptr<GroupView>> views_;
  std::optional<HostGather> gather_;
  std::optional<HostReductions> reductions_;
  std::unique_ptr<HostLink> link_;
  std::unique_ptr<PeerMonitor> monitor_;
};

Result<std::unique_ptr<Communicator>> connect_local(const RankIdentity& identity,
                                                    std::chrono::seconds timeout) {
  if (identity.world == 1) return make_self_communicator();
  OFSDP_ASSIGN_OR_RETURN(LocalRendezvous meeting, meet(only_host(identity), timeout));
  std::vector<UniqueFd> liveness_pipes = std::move(meeting.liveness_pipes);
  const std::vector<int> host_of(static_cast<size_t>(identity.world), 0);
  auto communicator = std::make_unique<HostCommunicator>(HostMap::make(identity.rank, host_of, {}),
                                                         std::move(meeting), timeout);
  OFSDP_RETURN_IF_ERROR(communicator->watch(std::move(liveness_pipes)));
  return std::unique_ptr<Communicator>(std::move(communicator));
}

// If `engine` is null, payloads use the meeting's connections.
Result<std::unique_ptr<Communicator>> connect_hosts(const RankIdentity& identity,
                                                    RendezvousPoint point,
                                                    std::unique_ptr<PayloadEngine> engine,
                                                    std::chrono::seconds timeout) {
  OFSDP_ASSIGN_OR_RETURN(HostsRendezvous hosts, meet_hosts(identity, std::move(point), timeout));
  const LocalRank self{hosts.map.here(), hosts.map.place(), identity.world, hosts.rendezvous};
  Result<LocalRendezvous> met = meet(self, hosts.left());
  OFSDP_RETURN_IF_ERROR(hosts.conclude(met.ok() ? Status{} : std::move(met).status()));
  std::vector<UniqueFd> liveness_pipes = std::move(met->liveness_pipes);
  auto communicator = std::make_unique<HostCommunicator>(hosts.map, *std::move(met), timeout);
  OFSDP_RETURN_IF_ERROR(communicator->connect(hosts, std::move(engine)));
  OFSDP_RETURN_IF_ERROR(communicator->watch(std::move(liveness_pipes)));
  return std::unique_ptr<Communicator>(std::move(communicator));
}

// ---- The launcher's MPI ----
//
// Gives ranks that have no MASTER_ADDR a place to meet, and carries payloads. MPI makes no progress
// by itself: the link's thread drives it while bytes are on their way, and otherwise sleeps on the
// rendezvous connections.

// Loads the library that belongs to the launcher (RankIdentity::engine), from the program's folder,
// the folder above (tests), or the system's folders. It is never unloaded.
Result<decltype(&ofsdp_mpi_open)> load(const RankIdentity& identity) {
  const std::string name = format_text("libofsdp_mpi_{}.so", identity.engine);
  std::string why;
  for (const std::string& path : own_library_paths(name)) {
    // Global, since MPI's components are libraries that need these symbols.
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) {
      const char* const said = dlerror();
      if (why.empty() || access(path.c_str(), F_OK) == 0) why = said == nullptr ? "" : said;
      continue;
    }
    auto* const version =
        reinterpret_cast<decltype(&ofsdp_mpi_version)>(dlsym(handle, "ofsdp_mpi_version"));
    if (version != nullptr && version() == kMpiLibraryVersion) {
      return reinterpret_cast<decltype(&ofsdp_mpi_open)>(dlsym(handle, "ofsdp_mpi_open"));
    }
    why = format_text("{} is of another version of fsdp-run", path);
    break;
  }
  return input_error(
      "{} is missing, expected for ranks that {} started on several hosts: {}; or set MASTER_ADDR, "
      "MASTER_PORT and OFSDP_ENGINE=tcp",
      name, identity.started_by, why);
}

// Rank 0's address as MPI broadcasts it.
struct Place {
  int32_t port = 0;
  int32_t failed = 0;
  std::array<char[64], 8> addresses = {};
};

Result<std::unique_ptr<MpiEngine>> open_mpi(const RankIdentity& identity) {
  OFSDP_ASSIGN_OR_RETURN(auto* const open, load(identity));
  char error[512] = "";
  std::unique_ptr<MpiEngine> mpi(open(error, sizeof error));
  if (!mpi) return fault("{}", error);
  if (mpi->rank() == identity.rank && mpi->size() == identity.world) return mpi;
  return input_error("{} says rank {} of {}, the environment of {} says rank {} of {}", mpi->name(),
                     mpi->rank(), mpi->size(), identity.started_by, identity.rank, identity.world);
}

// Returns a secret that rank 0 draws for a job without one: MPI already keeps strangers out.
Result<JobSecret> draw_secret(MpiEngine& mpi) {
  std::string bytes = JobSecret::drawn().bytes();
  OFSDP_RETURN_IF_ERROR(mpi.broadcast(std::as_writable_bytes(std::span(bytes))));
  return JobSecret(std::move(bytes));
}

// Lets rank 0 listen, and tells the others by MPI.
Result<RendezvousPoint> rendezvous_point(MpiEngine& mpi) {
  Place place;
  RendezvousPoint point;
  Status listens;
  if (mpi.rank() == 0) {
    point.addresses = own_addresses();
    point.addresses.push_back("127.0.0.1");  // a machine without a network
    const std::vector<std::string> addresses = listening_addresses(point);
    point.addresses.clear();
    auto listener = Listener::open(addresses, point.port);
    if (listener.ok()) point.listener = std::move(*listener);
    place.failed = point.listener.valid() ? 0 : 1;
    listens = std::move(listener).status();
    place.port = point.port;
    for (size_t i = 0; i < std::min(addresses.size(), place.addresses.size()); ++i) {
      std::strncpy(place.addresses[i], addresses[i].c_str(), sizeof place.addresses[i] - 1);
    }
  }
  OFSDP_RETURN_IF_ERROR(mpi.broadcast(std::as_writable_bytes(std::span(&place, 1))));
  OFSDP_RETURN_IF_ERROR(std::move(listens));
  if (place.failed != 0) return Status(ErrorKind::kPeer, "rank 0 cannot listen");
  point.port = place.port;
  for (const auto& address : place.addresses) {
    if (address[0] == 0) continue;
    point.addresses.emplace_back(address, strnlen(address, sizeof address));
  }
  return point;
}

}  // namespace

Result<std::unique_ptr<Communicator>> connect_ranks(const RankIdentity& started,
                                                    std::chrono::seconds timeout) {
  if (!started.several_hosts()) return connect_local(started, timeout);
  RankIdentity identity = started;
  std::unique_ptr<MpiEngine> mpi;
  if (identity.engine != "tcp") {
    OFSDP_ASSIGN_OR_RETURN(mpi, open_mpi(identity));
    OFSDP_ASSIGN_OR_RETURN(JobSecret drawn, draw_secret(*mpi));
    if (identity.secret.empty()) identity.secret = std::move(drawn);
  }
  if (mpi && identity.master_address.empty()) {
    OFSDP_ASSIGN_OR_RETURN(RendezvousPoint point, rendezvous_point(*mpi));
    return connect_hosts(identity, std::move(point), std::move(mpi), timeout);
  }
  OFSDP_REJECT_IF(
      identity.master_address.empty(),
      "MASTER_ADDR and MASTER_PORT are not set, expected them for ranks on several hosts: an "
      "address of rank 0's host and a free port there");
  OFSDP_ASSIGN_OR_RETURN(RendezvousPoint point, rendezvous_point(identity, timeout));
  return connect_hosts(identity, std::move(point), std::move(mpi), timeout);
}

}  // namespace ofsdp::fsdp
