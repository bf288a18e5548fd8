// The shared page through which ranks on one host signal each other. It holds counters, and no data
// except an exchange's doubles. Every cache line has one writer unless noted.
//
//   RunFlags       the rank that failed first, the rank that died
//   RankState      a rank: doorbell, pid, whether it has left, exchange and payload
//   ChannelCounts  a rank's counters for one channel, all monotonic:
//                    posted  slots completed    summed  all_reduce: own span summed
//                    done    peers' slots read to the end
//                    served, pulled  see hosts/host_collectives.h
//
// The page has a place for every rank in the run. Ranks on this host fill remote ranks' places when
// they hear from them.
//
// A waiter sleeps on the doorbell that belongs to the rank that it waits for ([Note: doorbells] in
// the source), so a post costs a store and a load unless somebody sleeps.
//
// A ControlPage owns the mapping; the memory is an anonymous memfd that ends with the last rank.
// All shared members are atomic or guarded by an atomic sequence. Errors: kFault if the system has
// no memory or descriptor left.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "fsdp/comm/communicator.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

// A failed rank and the exit status in one word, for the page and between hosts; 0 means none.
constexpr uint32_t failure_word(int rank, int exit_status) {
  return static_cast<uint32_t>(rank + 1) << 8 | static_cast<uint32_t>(exit_status);
}
constexpr int failed_rank(uint32_t word) { return static_cast<int>(word >> 8) - 1; }
constexpr int failed_exit(uint32_t word) { return static_cast<int>(word & 0xff); }

struct alignas(64) RunFlags {
  std::atomic<uint32_t> failed{0};  // the first failure_word
  // 0, or rank + 1 for the first rank that ended without a report; with kCut if the network lost
  // it.
  std::atomic<int32_t> dead{0};
  std::atomic<int32_t> gone{0};  // 0, or rank + 1 for a remote rank that left and is needed
  // 0, or (host + 1) << 1 | may print: whether this host's failed rank may print a message, as
  // another host decided; the first host in order counts.
  std::atomic<uint32_t> verdict{0};
};

inline constexpr int32_t kCut = 1 << 30;

struct RankState {
  alignas(64) std::atomic<uint32_t> doorbell{0};  // futex word; rung by the rank
  std::atomic<uint32_t> sleepers{0};              // waiters that need the doorbell
  alignas(64) std::atomic<int32_t> pid{0};
  std::atomic<uint32_t> left{0};                  // 1: it has ended in order
  std::atomic<int32_t> waits_for{0};              // 0, or rank + 1 if it waits for that rank
  std::atomic<int64_t> looked{0};                 // last check in that wait: steady clock, ns
  alignas(64) std::atomic<uint64_t> sequence{0};  // exchanges begun; two payloads alternate
  double payload[2][kMaxExchange] = {};
};

struct alignas(64) ChannelCounts {
  std::atomic<uint64_t> posted{0};
  std::atomic<uint64_t> summed{0};
  std::atomic<uint64_t> done{0};
  std::atomic<uint64_t> served{0};
  std::atomic<uint64_t> pulled{0};
};

// A slot's state; it holds a remote shard's piece in a rank's staging area; the readers write it
// too. See hosts/host_collectives.h.
struct alignas(64) FetchedSlot {
  std::atomic<uint64_t> filled{0};   // the ticket for a piece and a gather
  std::atomic<uint64_t> pending{0};  // ranks on the host that have not read it yet
};
inline constexpr int kFetchedSlots = 16;

class ControlPage {
 public:
  ControlPage() = default;
  ControlPage(ControlPage&& other) noexcept { *this = std::move(other); }
  ControlPage& operator=(ControlPage&& other) noexcept;
  ~ControlPage();

  static Result<ControlPage> create(int world);               // called by rank 0
  static Result<ControlPage> map(UniqueFd memfd, int world);  // called by the others

  int fd() const { return memfd_.get(); }
  int world() const { return world_; }
  RunFlags& run() const { return *reinterpret_cast<RunFlags*>(base_); }
  RankState& rank(int rank) const {
    return reinterpret_cast<RankState*>(base_ + sizeof(RunFlags))[rank];
  }
  ChannelCounts& channel(int channel, int rank) const;
  FetchedSlot& fetched(int rank, int index) const;

  // Sets a counter that belongs to `rank` and wakes all that sleep on that doorbell.
  void publish(std::atomic<uint64_t>& counter, uint64_t value, int rank) const;
  // Sleeps until `rank`'s doorbell differs from `heard`, at most `slice`.
  void sleep_on_doorbell(int rank, uint32_t heard, std::chrono::nanoseconds slice) const;

  bool claim_failure(int rank, int exit_status) const;  // true if it is the first failure
  void take_failure(uint32_t failure) const;            // a failure_word from another host
  void note_verdict(int host, bool may_print) const;
  std::optional<bool> verdict_of(int host) const;
  void note_death(int rank, bool cut = false) const;
  void note_gone(int rank) const;  // the rank left but is needed
  void note_leave(int rank) const;
  void ring(int rank) const;  // wakes all that sleep on the doorbell
  // Returns the failed run's exit status, or 0 while nothing failed.
  int exit_status() const { return failed_exit(run().failed.load()); }

 private:
  void ring_all() const;

  std::byte* base_ = nullptr;
  int world_ = 0;
  UniqueFd memfd_;
};

}  // namespace ofsdp::fsdp
