// The shared page through which ranks of one host signal each other: counters, no data but the few
// doubles of an exchange. Every line has one writer, where nothing else is said; the others read
// it.
//
//   RunFlags       the run: which rank failed first, which rank died
//   RankState      a rank: its doorbell, its pid, whether it has left, its exchange and payload
//   ChannelCounts  a rank's counters of one channel, all monotonic:
//                    posted  slots completed    summed  all_reduce: own span summed
//                    done    slots of the peers read to the end
//                    served, pulled  see hosts/host_communicator.h
//
// The page has a place for every rank of the run. Those of other hosts are filled by the ranks of
// this host that hear from them.
//
// A waiter sleeps on the doorbell of the rank it waits for ([Note: doorbells] in the source), so a
// post costs a store and a load unless somebody sleeps.
//
// Ownership: a ControlPage owns its mapping; the memory itself is an anonymous memfd that dies with
// its last rank. Threads: any, everything shared is atomic or guarded by an atomic sequence.
// Errors: kFault when the system has no memory or descriptor left.
#pragma once

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <optional>
#include <utility>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/local/fd_channel.h"
#include "kernels/base/reject.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

struct alignas(64) RunFlags {
  std::atomic<uint32_t> failed{0};  // 0, or (rank + 1) << 8 | exit status: the first to say so
  // 0, or rank + 1: the first that ended without a word; with kCut, that the network lost.
  std::atomic<int32_t> dead{0};
  std::atomic<int32_t> gone{0};  // 0, or rank + 1 of another host that left and is needed
  // 0, or (host + 1) << 1 | may print: what another host says of the failure of a rank of this one;
  // of several the first host.
  std::atomic<uint32_t> verdict{0};
};

inline constexpr int32_t kCut = 1 << 30;

struct RankState {
  alignas(64) std::atomic<uint32_t> doorbell{0};  // futex word; rung by the rank
  std::atomic<uint32_t> sleepers{0};              // waiters that need the doorbell
  alignas(64) std::atomic<int32_t> pid{0};
  std::atomic<uint32_t> left{0};                  // 1: done in order
  std::atomic<int32_t> waits_for{0};              // 0, or rank + 1 that a long wait is for
  std::atomic<int64_t> looked{0};                 // when that wait last looked: steady clock, ns
  alignas(64) std::atomic<uint64_t> sequence{0};  // exchanges begun; two payloads take turns
  double payload[2][kExchangeMost] = {};
};

struct alignas(64) ChannelCounts {
  std::atomic<uint64_t> posted{0};
  std::atomic<uint64_t> summed{0};
  std::atomic<uint64_t> done{0};
  std::atomic<uint64_t> served{0};
  std::atomic<uint64_t> pulled{0};
};

// A piece of a remote shard in a rank's staging, which the ranks of its host read; written by them
// too. See hosts/host_gather.h.
struct alignas(64) FetchedSlot {
  std::atomic<uint64_t> filled{0};   // which piece of which gather
  std::atomic<uint64_t> pending{0};  // ranks of the host that have not read it
};
inline constexpr int kFetchedSlots = 16;

class ControlPage {
 public:
  ControlPage() = default;

  // [Note: doorbells] The signaller stores its counter, then loads `sleepers`; the waiter raises
  // `sleepers`, then loads the doorbell and then the counter. All are sequentially consistent, so
  // either the signaller sees the sleeper and rings, or the waiter sees the counter. The doorbell
  // is read before the counter, so a ring between that and the futex call makes the call return at
  // once. A failure rings every doorbell.
  ControlPage(ControlPage&& other) noexcept { *this = std::move(other); }

  ControlPage& operator=(ControlPage&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(world_, other.world_);
    std::swap(memfd_, other.memfd_);
    return *this;
  }

  ~ControlPage() {
    if (base_ != nullptr) munmap(base_, page_bytes(world_));
  }

  // Rank 0 makes it.
  static Result<ControlPage> create(int world) {
    UniqueFd memfd(memfd_create("ofsdp-control", MFD_CLOEXEC));
    // Sparse: a channel costs memory only when it is used. Fresh pages are zero, which is every
    // member's first value.
    OFSDP_FAULT_IF(
        !memfd.valid() || ftruncate(memfd.get(), static_cast<off_t>(page_bytes(world))) != 0,
        "no memory for the control page of {} ranks: {} bytes ({})", world, page_bytes(world),
        std::strerror(errno));
    return map(std::move(memfd), world);
  }

  // The other ranks map it.
  static Result<ControlPage> map(UniqueFd memfd, int world) {
    const size_t bytes = page_bytes(world);
    struct stat found {};
    OFSDP_FAULT_IF(fstat(memfd.get(), &found) != 0 || static_cast<size_t>(found.st_size) != bytes,
                   "the control page of rank 0 has {} bytes, expected {} for {} ranks",
                   found.st_size, bytes, world);
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
    OFSDP_FAULT_IF(base == MAP_FAILED, "no memory for the control page: {} bytes ({})", bytes,
                   std::strerror(errno));
    ControlPage page;
    page.base_ = static_cast<std::byte*>(base);
    page.world_ = world;
    page.memfd_ = std::move(memfd);
    return page;
  }

  int fd() const { return memfd_.get(); }
  int world() const { return world_; }
  RunFlags& run() const { return *reinterpret_cast<RunFlags*>(base_); }
  RankState& rank(int rank) const {
    return reinterpret_cast<RankState*>(base_ + sizeof(RunFlags))[rank];
  }

  ChannelCounts& channel(int channel, int rank) const {
    const size_t ranks = static_cast<size_t>(world_);
    auto* first = reinterpret_cast<ChannelCounts*>(
        base_ + sizeof(RunFlags) +
        ranks * (sizeof(RankState) + kFetchedSlots * sizeof(FetchedSlot)));
    return first[static_cast<size_t>(channel) * ranks + static_cast<size_t>(rank)];
  }

  FetchedSlot& fetched(int rank, int index) const {
    auto* first = reinterpret_cast<FetchedSlot*>(base_ + sizeof(RunFlags) +
                                                 static_cast<size_t>(world_) * sizeof(RankState));
    return first[rank * kFetchedSlots + index];
  }

  // Sets a counter of `rank` and wakes whoever sleeps on that rank.
  void publish(std::atomic<uint64_t>& counter, uint64_t value, int rank) const {
    counter.store(value, std::memory_order_seq_cst);
    ring(rank);
  }

  // Sleeps until the doorbell of `rank` is not `heard` any more, at most `slice`.
  void sleep_on_doorbell(int rank, uint32_t heard, std::chrono::nanoseconds slice) const {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(slice);
    const timespec longest{static_cast<time_t>(seconds.count()), (slice - seconds).count()};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&this->rank(rank).doorbell), FUTEX_WAIT, heard,
            &longest, nullptr, 0);
  }

  // Returns true for the first.
  bool claim_failure(int rank, int exit_status) const {
    uint32_t nobody = 0;
    const uint32_t mine = static_cast<uint32_t>(rank + 1) << 8 | static_cast<uint32_t>(exit_status);
    const bool first = run().failed.compare_exchange_strong(nobody, mine);
    ring_all();
    return first;
  }

  // `failure`: as RunFlags::failed, heard from another host.
  void take_failure(uint32_t failure) const {
    uint32_t nobody = 0;
    if (failure != 0 && run().failed.compare_exchange_strong(nobody, failure)) ring_all();
  }

  void note_verdict(int host, bool may_print) const {
    const auto place = static_cast<uint32_t>(host + 1);
    uint32_t known = run().verdict.load();
    while (known == 0 || known >> 1 > place) {
      const uint32_t mine = place << 1 | static_cast<uint32_t>(may_print);
      if (run().verdict.compare_exchange_weak(known, mine)) return;
    }
  }

  std::optional<bool> verdict_of(int host) const {
    const uint32_t known = run().verdict.load();
    if (known >> 1 != static_cast<uint32_t>(host + 1)) return std::nullopt;
    return (known & 1) != 0;
  }

  void note_death(int rank, bool cut = false) const {
    int32_t nobody = 0;
    run().dead.compare_exchange_strong(nobody, (rank + 1) | (cut ? kCut : 0));
    ring_all();
  }

  // The rank left, and is needed.
  void note_gone(int rank) const {
    int32_t nobody = 0;
    run().gone.compare_exchange_strong(nobody, rank + 1);
    ring_all();
  }

  void note_leave(int rank) const {
    this->rank(rank).left.store(1, std::memory_order_seq_cst);
    ring_all();
  }

  // Wakes whoever sleeps on that rank.
  void ring(int rank) const {
    RankState& me = this->rank(rank);
    if (me.sleepers.load(std::memory_order_seq_cst) == 0) return;
    me.doorbell.fetch_add(1, std::memory_order_seq_cst);
    wake_all(me.doorbell);
  }

  // Returns that of the failed run; 0 while nothing failed.
  int exit_status() const { return static_cast<int>(run().failed.load() & 0xff); }

 private:
  static_assert(std::atomic<uint64_t>::is_always_lock_free);  // so they work between processes
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));  // a futex word

  static size_t page_bytes(int world) {
    const size_t ranks = static_cast<size_t>(world);
    return sizeof(RunFlags) + ranks * (sizeof(RankState) + kFetchedSlots * sizeof(FetchedSlot) +
                                       kMostChannels * sizeof(ChannelCounts));
  }

  static void wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
            0);
  }

  void ring_all() const {
    for (int r = 0; r < world_; ++r) {
      rank(r).doorbell.fetch_add(1, std::memory_order_seq_cst);
      wake_all(rank(r).doorbell);
    }
  }

  std::byte* base_ = nullptr;
  int world_ = 0;
  UniqueFd memfd_;
};

}  // namespace ofsdp::fsdp
