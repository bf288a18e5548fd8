// Communicator: a run's collectives. The schedule names every call; nothing else communicates.
//
// Three implementations: `self` (one rank), `local` (processes on one host, by shared memory) and
// one for several hosts, which adds TCP or MPI between them (fsdp/connect.cpp).
//
// `allocate_shared` makes the segment that peers read. Parameter shards and gradient slots are byte
// offsets into it, equal on every rank. Ranks on one host may also have memory in common
// (`allocate_common`), which holds a unit's shards side by side, so that no gather is needed
// ([Note: in place] in fsdp/plan/plan.h).
//
//   all_gather      dst[i * numel ...] = the group's i-th rank's numel elements, from
//                   segment[offset + i * stride], converted to dst_dtype; unequal parts have places
//                   of their own (RankPart). Skips a part that is in place. It follows the exchange
//                   that ends an update, so values are final. Across hosts all ranks in the group
//                   must call it, or a single one with site.alone.
//   acquire(c)      waits until the group has read this rank's slot for channel c. Must precede the
//                   next write to the slot.
//   post(c)         marks this rank's slot for channel c as complete. Across hosts the reduction's
//                   transfers begin. Never waits.
//   reduce_scatter  waits until the group has posted channel c, then gives `sink` this rank's numel
//                   elements of the sum, in blocks of at most kReduceBlock. Elements are
//                   float32; they begin at index * numel, or at `first`; `onto` is added if given.
//                   With unequal parts the slot must name all.
//   all_reduce      leaves the float32 sum, count * numel elements, or all of the unequal parts, in
//                   every slot in the group.
//                   Returns when this rank's slot is complete.
//   exchange        all[r * n ...] = rank r's n doubles; n <= kMaxExchange. Waits for all.
//
// [Note: order of a sum] An element is summed in rank order inside each host, then over the hosts,
// ordered by first rank. So a sum has the same bits with every strategy.
//
// REQUIRES: all ranks call `allocate_shared` once before any collective except `barrier` and
// `exchange`, with equal bytes unless they say that sizes differ. A channel belongs to one group;
// each rank calls acquire, post and reduce on it in turn.
//
// The communicator owns the segments. Only the thread that runs the schedule calls it; any thread
// may call `fail`. No call allocates after allocate_shared. Errors: kFault with rank, step, unit
// and collective if a rank died or did not arrive within the timeout; kPeer if another rank has
// reported a failure first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fsdp/plan/unit.h"
#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "kernels/core/memory.h"

namespace ofsdp::fsdp {

inline constexpr int64_t kReduceBlock = 4096;  // elements: 16 KiB, half a first-level cache
inline constexpr int kMaxExchange = 16;        // doubles
inline constexpr int kMaxChannels = 4096;
inline constexpr int kMaxRanks = 4096;

// Names the collective that the caller is in, for messages.
struct CollectiveSite {
  const char* collective = "";
  int unit = -1;       // -1 if none
  int64_t step = 0;    // negative if none
  bool alone = false;  // a gather that only this rank in the group calls
};

// A rank's part in a gather or a sum, if the ranks' parts are unequal.
struct RankPart {
  size_t offset = 0;  // of a gather: where the part is in the rank's segment
  int64_t begin = 0;  // elements before it in the group's array
  int64_t numel = 0;
};

// A rank's part in a gather: a place in the segment.
struct ShardSource {
  size_t offset = 0;
  size_t stride = 0;  // bytes from one rank's part to the next in the group
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
  std::span<const RankPart> parts = {};  // by index in the group; empty: equal ones

  RankPart of(int index) const {
    if (!parts.empty()) return parts[static_cast<size_t>(index)];
    return {offset + static_cast<size_t>(index) * stride, index * numel, numel};
  }
};

// A gradient slot: count * numel elements, at the same place in every segment.
struct SlotSource {
  size_t offset = 0;
  int64_t numel = 0;  // in one rank's span
  DType dtype = DType::kFloat32;
  int64_t first = -1;                    // the first element of this rank's span; -1: index * numel
  const float* onto = nullptr;           // numel elements to which the sum is added, or null
  std::span<const RankPart> parts = {};  // by index in the group; empty: equal ones

  RankPart of(int index) const {
    if (!parts.empty()) return parts[static_cast<size_t>(index)];
    return {offset, index * numel, numel};
  }
};

// A reference to a callable that takes one reduced block; never owns, never allocates.
class BlockSink {
 public:
  template <typename F>
  BlockSink(F& function)  // NOLINT: implicit on purpose
      : object_(&function), call_([](void* object, int64_t begin, std::span<float> block) {
          (*static_cast<F*>(object))(begin, block);
        }) {}
  // `begin` counts elements from this rank's span start; the block may be changed in place.
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
  // Returns the ranks on each host if all hosts have as many, with consecutive ranks; else 0.
  virtual int ranks_on_each_host() const { return size(); }
  // Returns true on the one rank on each host that fills share_from_rank0's bytes.
  virtual bool is_first_on_host() const { return rank() == 0; }
  // Returns the bytes that allocate_shared takes in addition, in whole pages.
  virtual size_t staging_bytes() const { return 0; }

  // Ranks may ask for different sizes if all say so.
  enum class Sizes { kEqual, kOfEachRank };
  virtual Result<std::byte*> allocate_shared(MemoryLedger& ledger, size_t bytes, Sizes sizes) = 0;
  Result<std::byte*> allocate_shared(MemoryLedger& ledger, size_t bytes) {
    return allocate_shared(ledger, bytes, Sizes::kEqual);
  }
  // Returns n if ranks [k * n, k * n + n) share a host and may have memory in common; 1 if none do.
  virtual int ranks_in_common() const { return 1; }
  // Returns memory in common, `whole` bytes in whole pages. All ranks on the host read and write
  // it; callers must keep reads and writes apart. The rank's ledger counts `part`, in whole pages.
  // Collective; must be called at most once, with equal `whole` on all ranks.
  virtual Result<std::byte*> allocate_common(MemoryLedger&, size_t whole, size_t) {
    OFSDP_CHECK(whole == 0, "'{}' has no memory in common", name());
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
  // Returns the error that a wait for other ranks would return, for callers that wait by other
  // means. Never waits.
  virtual Status check(const CollectiveSite&) const { return {}; }

  // Returns read-only bytes that all ranks on a host see (a decompressed data column): the first
  // one fills them with `fill`, the others wait and map them. The first one's ledger counts them.
  virtual Result<std::span<const std::byte>> share_from_rank0(
      MemoryLedger& ledger, size_t bytes, const std::string& name,
      Status (*fill)(void* context, std::span<std::byte> bytes), void* context) = 0;

  // Tells the others that this rank stops with `status`. Returns true on the one rank that must
  // print the message: the first to fail. The run ends with that rank's exit status.
  virtual bool fail(const Status& status) = 0;
  // Returns the nanoseconds spent waiting for other ranks, in all calls together.
  virtual int64_t waited() const { return 0; }
  virtual int exit_status() const = 0;  // the failed run's; 0 while nothing failed
  // Ends this rank's part in order, so that the process's end does not count as a death. Returns
  // kFault if ranks that must leave at the same time do not come.
  virtual Status leave() = 0;
};

std::unique_ptr<Communicator> make_self_communicator();

// Gradient sums and conversions. `dst` must not overlap a source. Never allocates.

// dst[i] = ((src[0][i] + src[1][i]) + src[2][i]) + ... in float32, in that order for every element,
// so the bits depend neither on the rank that sums nor on the blocks. 16-bit sources are widened
// first. If `onto` is given, the sum starts from onto[i]; it may be dst.
void sum_in_rank_order(std::span<const std::byte* const> sources, DType dtype, int64_t numel,
                       float* dst, const float* onto = nullptr);

// dst[i] += src[i].
void add_elements(const std::byte* src, DType from, float* dst, int64_t numel);

// Rounds to the nearest value in `to`, ties to even.
void round_elements(float* values, DType to, int64_t numel);

// Converts between float32 and a 16-bit float. Copies if the types are equal, unless dst is src.
void convert_elements(const std::byte* src, DType from, std::byte* dst, DType to, int64_t numel);

// PayloadEngine moves bytes between ranks on different hosts over the cluster's own network, so
// that the rendezvous connections carry requests only. Without one, bytes follow the answer on the
// connection.
//
// MpiEngine is an MPI library's engine. libofsdp_mpi_openmpi.so and libofsdp_mpi_mpich.so each
// define one (hosts/mpi/mpi_library.cpp) and are loaded at run time, so that one program serves
// both, and hosts without MPI. No MPI type occurs here, and the libraries are built with the
// program.

// Used by the link's thread. Errors: kFault, with the library's text.
class PayloadEngine {
 public:
  struct Done {
    bool sent;  // else received
    int peer;
    uint32_t id;
  };

  virtual ~PayloadEngine() = default;
  virtual std::string name() const = 0;
  // Begin a transfer; `id` is the receiver's request id on both sides. A rank must begin to receive
  // before it sends the request. The bytes must stay until `progress` reports the transfer.
  virtual Status receive(int peer, uint32_t id, std::span<std::byte> dst) = 0;
  virtual Status send(int peer, uint32_t id, std::span<const std::byte> src) = 0;
  // Appends finished transfers to `done`.
  virtual Status progress(std::vector<Done>& done) = 0;
  // Forgets all transfers after a failure, without a word to other ranks. Only close() may follow.
  virtual void abandon() = 0;
  // REQUIRES: no transfer is under way.
  virtual void close(bool in_order) = 0;
};

// Calls must not overlap (MPI_THREAD_SERIALIZED). Needs MPI 3.1.
class MpiEngine : public PayloadEngine {
 public:
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Status broadcast(std::span<std::byte> bytes) = 0;  // from rank 0
};

inline constexpr int kMpiLibraryVersion = 3;

}  // namespace ofsdp::fsdp

extern "C" {
int ofsdp_mpi_version();
// Starts MPI; the caller deletes the engine. Returns null if that fails, and writes the reason to
// `error`, at most `bytes` bytes.
ofsdp::fsdp::MpiEngine* ofsdp_mpi_open(char* error, size_t bytes);
}
