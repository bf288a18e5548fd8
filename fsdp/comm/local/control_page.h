// The control page: a shared memory file through which the ranks on one host signal each other.
// It holds counters and flags, and no data except the doubles of an exchange.
//
//   RunFlags       one per page: the first failure and the first death in the run
//   RankState      one per rank: doorbell, pid, whether it has exited, an exchange's doubles
//   FetchedSlot    kFetchedSlots per rank: the pieces from other hosts that it holds
//   ChannelCounts  one per rank and channel. A channel carries one collective at a time, round
//                  after round; the counters tell how far the rank is
//
// The page has a place for every rank in the run, not only for this host's. Several hosts have a
// page each: the ranks on a host enter there what remote ranks report over the network
// (hosts/host_link.h). Every cache line has one writing rank unless a comment says otherwise.
//
// To wait, a rank sleeps on the doorbell (a futex word) of the rank that it waits for, and that
// rank rings after it has raised a counter ([Note: doorbells] in the source). If nobody sleeps,
// ringing costs a store and a load. PeerWait (peer_wait.h) waits and turns flags into errors.
//
// The first rank on the host creates the page and passes the descriptor to the others
// (rendezvous.h). Each rank's communicator owns a ControlPage; the destructor unmaps the memory.
// The memory is an anonymous memfd: the kernel frees it after the last rank has ended. All shared
// members are atomic, except payload, which `sequence` guards; any thread may call. Only `create`
// and `map` fail, with kFault, if the system has no memory or descriptor left.
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

// A failed rank and its exit status in one word, in the page and between hosts; 0 means that no
// rank has failed. REQUIRES: 0 <= exit_status < 256.
constexpr uint32_t failure_word(int rank, int exit_status) {
  return static_cast<uint32_t>(rank + 1) << 8 | static_cast<uint32_t>(exit_status);
}
constexpr int failed_rank(uint32_t word) { return static_cast<int>(word >> 8) - 1; }
constexpr int failed_exit(uint32_t word) { return static_cast<int>(word & 0xff); }

// Several ranks write these flags; the first writer of a flag wins (the lowest host, for verdict).
struct alignas(64) RunFlags {
  // The failure_word of the first rank that reported a failure (Communicator::fail).
  std::atomic<uint32_t> failed{0};
  // 0, or rank + 1 of the first rank that ended without a report. The bit kCut is set as well if
  // only the connection to that rank's host was lost.
  std::atomic<int32_t> dead{0};
  // 0, or rank + 1 of a rank on another host that exited although a rank still waits for data from
  // it.
  std::atomic<int32_t> gone{0};
  // Only one rank of a run prints its error. If ranks fail on several hosts at once, the failed
  // rank asks the other hosts whether it is the one; the answer of the host with the lowest number
  // counts, and stands here. 0: no answer yet; else (answering host + 1) << 1 | may print.
  std::atomic<uint32_t> verdict{0};
};

inline constexpr int32_t kCut = 1 << 30;

struct RankState {
  alignas(64) std::atomic<uint32_t> doorbell{0};  // futex word; raised to wake the sleepers
  std::atomic<uint32_t> sleepers{0};  // ranks that sleep on the doorbell; they write this counter
  alignas(64) std::atomic<int32_t> pid{0};
  std::atomic<uint32_t> left{0};      // 1: the rank has exited without an error
  std::atomic<int32_t> waits_for{0};  // 0, or rank + 1 of the rank that it waits for
  // When it last checked that wait, in steady-clock ns; in the future if the check takes long.
  std::atomic<int64_t> wait_renewed{0};
  // Exchanges that the rank has begun, from 1. It raises the number after it has written the
  // doubles of exchange n to payload[n % 2]; a slow rank may still read those of exchange n - 1.
  alignas(64) std::atomic<uint64_t> sequence{0};
  double payload[2][kMaxExchange] = {};
};

// A rank's counters for a channel. They start at 0 and only rise. A rank posts when the slot (the
// rank's input to the collective, in the rank's segment) is complete, which begins a round.
struct alignas(64) ChannelCounts {
  std::atomic<uint64_t> posted{0};  // rounds in which the rank's slot was completed
  std::atomic<uint64_t> summed{0};  // all_reduce: rounds in which the rank's span is summed
  std::atomic<uint64_t> done{0};    // rounds in which it has read the slots of all peers
  // In the counters of the group's first rank on a host: elements of the host's slots that other
  // hosts have read, in all rounds together.
  std::atomic<uint64_t> served{0};
  std::atomic<uint64_t> pulled{0};  // rounds in which it has fetched other hosts' spans
};

// The state of one slot in a rank's staging area. The rank fetches a piece of a remote shard into
// the slot, and all ranks of the group on this host read it there (hosts/host_collectives.h). So
// the readers write this cache line too.
struct alignas(64) FetchedSlot {
  // A number that identifies the piece and the gather. 0 at first and while the piece is under way:
  // the fetching rank clears it when it requests the piece, the link sets it.
  std::atomic<uint64_t> filled{0};
  // A number that identifies the group. The fetching rank writes it while `filled` is 0.
  std::atomic<uint64_t> group{0};
  // Ranks on the host that have not read the piece yet. The fetching rank sets it with the request,
  // each reader lowers it by 1; at 0 the slot may be filled again.
  std::atomic<uint64_t> pending{0};
};
inline constexpr int kFetchedSlots = 16;

class ControlPage {
 public:
  ControlPage() = default;
  ControlPage(ControlPage&& other) noexcept { *this = std::move(other); }
  ControlPage& operator=(ControlPage&& other) noexcept;
  ~ControlPage();

  // `create` makes the page for a run of `world` ranks, on the first rank on the host. The others
  // map the descriptor that they receive.
  static Result<ControlPage> create(int world);
  static Result<ControlPage> map(UniqueFd memfd, int world);

  int fd() const { return memfd_.get(); }
  int world() const { return world_; }
  RunFlags& run() const { return *reinterpret_cast<RunFlags*>(base_); }
  RankState& rank(int rank) const {
    return reinterpret_cast<RankState*>(base_ + sizeof(RunFlags))[rank];
  }
  // REQUIRES: channel < kMaxChannels.
  ChannelCounts& channel(int channel, int rank) const;
  FetchedSlot& fetched(int rank, int index) const;

  // Sets a counter of `rank` and rings that rank's doorbell.
  void publish(std::atomic<uint64_t>& counter, uint64_t value, int rank) const;
  // Sleeps at most `longest`, or until `rank`'s doorbell is no longer `last_seen`, which the caller
  // read before it last checked the counter. May return early. REQUIRES: the caller has raised that
  // rank's `sleepers`.
  void sleep_on_doorbell(int rank, uint32_t last_seen, std::chrono::nanoseconds longest) const;

  // Records that a rank on this host failed. Returns true if it is the first failure of the run
  // that this host knows. Rings all doorbells, as take_failure and the note_ calls for a rank do.
  bool claim_failure(int rank, int exit_status) const;
  // Records a failure_word that another host has sent, unless a failure is known already.
  void take_failure(uint32_t failure) const;
  // Record and return the decision of `host` whether this host's failed rank prints the error
  // (RunFlags::verdict). No value: `host` has not decided, or a lower host has.
  void note_verdict(int host, bool may_print) const;
  std::optional<bool> verdict_of(int host) const;
  // Records a rank that ended without a report; `cut`: the connection to its host was lost.
  void note_death(int rank, bool cut = false) const;
  void note_gone(int rank) const;   // RunFlags::gone
  void note_leave(int rank) const;  // RankState::left
  void ring(int rank) const;        // wakes all ranks that sleep on the rank's doorbell
  // Returns the exit status of the first failed rank, or 0 if none has failed.
  int exit_status() const { return failed_exit(run().failed.load()); }

 private:
  void ring_all() const;

  std::byte* base_ = nullptr;
  int world_ = 0;
  UniqueFd memfd_;
};

}  // namespace ofsdp::fsdp
