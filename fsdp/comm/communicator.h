// Communicator: the collectives of a run's ranks. The schedule names every call; nothing else
// communicates.
//
// Three implementations: `self` (one rank), `local` (processes of one host, shared memory) and
// `hosts` (several hosts, each with its shared memory, and TCP or MPI between them:
// hosts/host_communicator.h).
//
// `allocate_shared` makes the segment that peers read. Parameter shards and gradient slots are byte
// offsets into it, the same on every rank. Ranks of one host may also have memory in common
// (`allocate_common`), which holds the shards of a unit side by side, so that no gather is needed
// ([Note: in place] in fsdp/plan/plan.h).
//
//   all_gather      dst[i * numel ...] = the numel elements that the group's i-th rank has at
//                   segment[offset + i * stride], converted to dst_dtype. Skips a part that is in
//                   place. It follows the exchange that ends an update, so values are final. Across
//                   hosts all ranks of the group call it, or one alone with site.alone.
//   acquire(c)      waits until the group has read this rank's slot of channel c. REQUIRED before
//                   the slot is written again.
//   post(c)         says that this rank's slot of channel c is complete. Across hosts the transfers
//                   of the reduction begin. Never waits.
//   reduce_scatter  waits until the group has posted channel c, then gives `sink` this rank's numel
//                   elements of the sum, in blocks of at most kReduceBlock elements. Elements are
//                   float32; they begin at index * numel, or at `first`; `onto` is added if given.
//   all_reduce      leaves the float32 sum of count * numel elements in every slot of the group.
//                   Returns when this rank's slot is complete.
//   exchange        all[r * n ...] = the n doubles of rank r; n <= kExchangeMost. Waits for all.
//
// [Note: order of a sum] An element is summed in rank order inside each host, then over the hosts
// in the order of their first ranks. So the bits of a sum are the same under every strategy.
//
// REQUIRES: all ranks call `allocate_shared` once, with the same number of bytes, before any
// collective but `barrier` and `exchange`. A channel belongs to one group, whose ranks call its
// acquire, post and reduce in turn.
//
// Owner: the session owns the communicator, the communicator owns the segments. Thread: the one
// that runs the schedule; `fail` may be called from any. No call allocates after allocate_shared.
// Errors: kFault, which names rank, step, unit and collective, when a rank died or did not arrive
// within the timeout; kPeer when another rank has reported a failure first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "fsdp/plan/rank_group.h"
#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "kernels/core/memory.h"

namespace ofsdp::fsdp {

inline constexpr int64_t kReduceBlock = 4096;  // elements: 16 KiB, half of a first-level cache
inline constexpr int kExchangeMost = 16;       // doubles
inline constexpr int kMostChannels = 4096;
inline constexpr int kMostRanks = 1024;

// Names the collective that the caller is in, for messages.
struct CollectiveSite {
  const char* collective = "";
  int unit = -1;       // -1: none
  int64_t step = 0;    // below 0: none
  bool alone = false;  // this rank calls, the others of the group do not: a gather may
};

// A rank's part of what is gathered, and its place in the segment.
struct ShardSource {
  size_t offset = 0;
  size_t stride = 0;  // bytes from where one rank of the group has its part to the next
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
};

// A gradient slot: count * numel elements, the same place in every segment.
struct SlotSource {
  size_t offset = 0;
  int64_t numel = 0;  // of one rank's span
  DType dtype = DType::kFloat32;
  int64_t first = -1;           // element where this rank's span begins; -1: index * numel
  const float* onto = nullptr;  // numel elements that the sum starts from, or null
};

// A reference to a callable that takes one reduced block; never owns, never allocates.
class BlockSink {
 public:
  template <typename F>
  BlockSink(F& function)  // NOLINT: implicit on purpose
      : object_(&function), call_([](void* object, int64_t begin, std::span<float> block) {
          (*static_cast<F*>(object))(begin, block);
        }) {}
  // `begin` counts elements from the start of this rank's span; the block may be changed in place.
  void operator()(int64_t begin, std::span<float> block) const { call_(object_, begin, block); }

 private:
  void* object_;
  void (*call_)(void*, int64_t, std::span<float>);
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "self", "local", "tcp", "Open MPI", ...
  // How many ranks each host has, when all have as many and a host's ranks are consecutive; else 0.
  virtual int ranks_of_each_host() const { return size(); }
  // The one rank of its host that fills what share_from_rank0 shares.
  virtual bool is_first_of_host() const { return rank() == 0; }
  // Bytes that allocate_shared takes in addition: a whole number of pages.
  virtual size_t staging_bytes() const { return 0; }

  virtual Result<std::byte*> allocate_shared(MemoryLedger& ledger, size_t bytes) = 0;
  // How many ranks share a host and so may have memory in common: those from each multiple of the
  // number on. 1: none.
  virtual int ranks_in_common() const { return 1; }
  // Collective, once: as many times the whole pages of `bytes`, the same number on all ranks, which
  // the host's ranks read and write; the caller sees to it that nobody reads what another writes.
  // The ledger of each rank counts `bytes` of it.
  virtual Result<std::byte*> allocate_common(MemoryLedger&, size_t bytes) {
    OFSDP_CHECK(bytes == 0, "'{}' has no memory in common", name());
    return nullptr;
  }
  virtual Status all_gather(const RankGroup& group, const ShardSource& source, std::byte* dst,
                            DType dst_dtype, const CollectiveSite& site) = 0;
  virtual Status acquire(int channel, const RankGroup& group, const CollectiveSite& site) = 0;
  virtual void post(int channel, const RankGroup& group, const SlotSource& slot) = 0;
  virtual Status reduce_scatter(int channel, const RankGroup& group, const SlotSource& slot,
                                BlockSink sink, const CollectiveSite& site) = 0;
  virtual Status all_reduce(int channel, const RankGroup& group, const SlotSource& slot,
                            const CollectiveSite& site) = 0;
  virtual Status exchange(std::span<const double> mine, std::span<double> all,
                          const CollectiveSite& site) = 0;
  virtual Status barrier(const CollectiveSite& site) = 0;
  // Whether a wait for other ranks has become vain, as the calls above say it: for those who wait
  // for them elsewhere. Never waits.
  virtual Status check(const CollectiveSite&) const { return {}; }

  // Read-only bytes made once on the host and seen by all its ranks (a decompressed data column):
  // the host's first rank fills them with `fill`, the others wait and map them. Counted in the
  // ledger of the rank that fills.
  virtual Result<std::span<const std::byte>> share_from_rank0(
      MemoryLedger& ledger, size_t bytes, const std::string& name,
      Status (*fill)(void* context, std::span<std::byte> bytes), void* context) = 0;

  // Tells the others that this rank stops with `status`. True for the one rank that is to print the
  // message: the first to fail, once a run. `exit_status` of the whole run becomes that rank's.
  virtual bool fail(const Status& status) = 0;
  // Nanoseconds spent waiting for other ranks so far, in all calls together.
  virtual int64_t waited() const { return 0; }
  virtual int exit_status() const = 0;  // of the failed run; 0 while nothing failed
  // This rank is done in order: its leaving is no death. kFault when others that must leave
  // together with it do not come.
  virtual Status leave() = 0;
};

std::unique_ptr<Communicator> make_self_communicator();

}  // namespace ofsdp::fsdp
