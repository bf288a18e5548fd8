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

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/local/fd_channel.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

// A rank's failure in one word, in the page and between hosts; 0 is none.
constexpr uint32_t failure_word(int rank, int exit_status) {
  return static_cast<uint32_t>(rank + 1) << 8 | static_cast<uint32_t>(exit_status);
}
constexpr int failed_rank(uint32_t word) { return static_cast<int>(word >> 8) - 1; }
constexpr int failed_exit(uint32_t word) { return static_cast<int>(word & 0xff); }

struct alignas(64) RunFlags {
  std::atomic<uint32_t> failed{0};  // a failure_word: the first to say so
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
  ControlPage(ControlPage&& other) noexcept { *this = std::move(other); }
  ControlPage& operator=(ControlPage&& other) noexcept;
  ~ControlPage();

  static Result<ControlPage> create(int world);               // rank 0 makes it
  static Result<ControlPage> map(UniqueFd memfd, int world);  // the other ranks map it

  int fd() const { return memfd_.get(); }
  int world() const { return world_; }
  RunFlags& run() const { return *reinterpret_cast<RunFlags*>(base_); }
  RankState& rank(int rank) const {
    return reinterpret_cast<RankState*>(base_ + sizeof(RunFlags))[rank];
  }
  ChannelCounts& channel(int channel, int rank) const;
  FetchedSlot& fetched(int rank, int index) const;

  // Sets a counter of `rank` and wakes whoever sleeps on that rank.
  void publish(std::atomic<uint64_t>& counter, uint64_t value, int rank) const;
  // Sleeps until the doorbell of `rank` is not `heard` any more, at most `slice`.
  void sleep_on_doorbell(int rank, uint32_t heard, std::chrono::nanoseconds slice) const;

  bool claim_failure(int rank, int exit_status) const;  // true for the first
  void take_failure(uint32_t failure) const;  // as RunFlags::failed, heard from another host
  void note_verdict(int host, bool may_print) const;
  std::optional<bool> verdict_of(int host) const;
  void note_death(int rank, bool cut = false) const;
  void note_gone(int rank) const;  // the rank left, and is needed
  void note_leave(int rank) const;
  void ring(int rank) const;  // wakes whoever sleeps on that rank
  // Returns that of the failed run; 0 while nothing failed.
  int exit_status() const { return failed_exit(run().failed.load()); }

 private:
  void ring_all() const;

  std::byte* base_ = nullptr;
  int world_ = 0;
  UniqueFd memfd_;
};

}  // namespace ofsdp::fsdp
