#include "fsdp/comm/local/control_page.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "kernels/base/status.h"

namespace ofsdp::fsdp {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free);         // needed between processes
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));  // a futex word

size_t page_bytes(int world) {
  const size_t ranks = static_cast<size_t>(world);
  return sizeof(RunFlags) + ranks * (sizeof(RankState) + kFetchedSlots * sizeof(FetchedSlot) +
                                     kMaxChannels * sizeof(ChannelCounts));
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

// [Note: doorbells] The signalling rank stores a counter, then loads `sleepers`; the waiting rank
// raises `sleepers`, then loads the doorbell and then the counter. All four are sequentially
// consistent, so either the signalling rank sees the sleeper and rings, or the waiting rank sees
// the counter. The waiting rank loads the doorbell before the counter: if the other one rings after
// these loads, the futex call finds another doorbell value and returns at once. A failure rings
// every doorbell.

ControlPage& ControlPage::operator=(ControlPage&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(world_, other.world_);
  std::swap(memfd_, other.memfd_);
  return *this;
}

ControlPage::~ControlPage() {
  if (base_ != nullptr) munmap(base_, page_bytes(world_));
}

Result<ControlPage> ControlPage::create(int world) {
  UniqueFd memfd(memory_file("ofsdp-control"));
  // The file is sparse, so only channels in use cost memory. Fresh pages are zero, every member's
  // initial value.
  OFSDP_FAULT_IF(
      !memfd.valid() || ftruncate(memfd.get(), static_cast<off_t>(page_bytes(world))) != 0,
      "no memory for the control page of {} ranks: {} bytes ({})", world, page_bytes(world),
      std::strerror(errno));
  seal_size(memfd.get());
  return map(std::move(memfd), world);
}

Result<ControlPage> ControlPage::map(UniqueFd memfd, int world) {
  const size_t bytes = page_bytes(world);
  struct stat found {};
  OFSDP_FAULT_IF(fstat(memfd.get(), &found) != 0 || static_cast<size_t>(found.st_size) != bytes,
                 "the control page of rank 0 has {} bytes, expected {} for {} ranks", found.st_size,
                 bytes, world);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  OFSDP_FAULT_IF(base == MAP_FAILED, "no memory for the control page: {} bytes ({})", bytes,
                 std::strerror(errno));
  ControlPage page;
  page.base_ = static_cast<std::byte*>(base);
  page.world_ = world;
  page.memfd_ = std::move(memfd);
  return page;
}

ChannelCounts& ControlPage::channel(int channel, int rank) const {
  const size_t ranks = static_cast<size_t>(world_);
  auto* first = reinterpret_cast<ChannelCounts*>(
      base_ + sizeof(RunFlags) + ranks * (sizeof(RankState) + kFetchedSlots * sizeof(FetchedSlot)));
  return first[static_cast<size_t>(channel) * ranks + static_cast<size_t>(rank)];
}

FetchedSlot& ControlPage::fetched(int rank, int index) const {
  auto* first = reinterpret_cast<FetchedSlot*>(base_ + sizeof(RunFlags) +
                                               static_cast<size_t>(world_) * sizeof(RankState));
  return first[rank * kFetchedSlots + index];
}

void ControlPage::publish(std::atomic<uint64_t>& counter, uint64_t value, int rank) const {
  counter.store(value, std::memory_order_seq_cst);
  ring(rank);
}

void ControlPage::sleep_on_doorbell(int rank, uint32_t last_seen,
                                    std::chrono::nanoseconds longest) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec limit{static_cast<time_t>(seconds.count()), (longest - seconds).count()};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&this->rank(rank).doorbell), FUTEX_WAIT, last_seen,
          &limit, nullptr, 0);
}

bool ControlPage::claim_failure(int rank, int exit_status) const {
  uint32_t nobody = 0;
  const uint32_t mine = failure_word(rank, exit_status);
  const bool first = run().failed.compare_exchange_strong(nobody, mine);
  ring_all();
  return first;
}

void ControlPage::take_failure(uint32_t failure) const {
  uint32_t nobody = 0;
  if (failure != 0 && run().failed.compare_exchange_strong(nobody, failure)) ring_all();
}

void ControlPage::note_verdict(int host, bool may_print) const {
  const auto place = static_cast<uint32_t>(host + 1);
  uint32_t known = run().verdict.load();
  while (known == 0 || known >> 1 > place) {
    const uint32_t mine = place << 1 | static_cast<uint32_t>(may_print);
    if (run().verdict.compare_exchange_weak(known, mine)) return;
  }
}

std::optional<bool> ControlPage::verdict_of(int host) const {
  const uint32_t known = run().verdict.load();
  if (known >> 1 != static_cast<uint32_t>(host + 1)) return std::nullopt;
  return (known & 1) != 0;
}

void ControlPage::note_death(int rank, bool cut) const {
  int32_t nobody = 0;
  run().dead.compare_exchange_strong(nobody, (rank + 1) | (cut ? kCut : 0));
  ring_all();
}

void ControlPage::note_gone(int rank) const {
  int32_t nobody = 0;
  run().gone.compare_exchange_strong(nobody, rank + 1);
  ring_all();
}

void ControlPage::note_leave(int rank) const {
  this->rank(rank).left.store(1, std::memory_order_seq_cst);
  ring_all();
}

void ControlPage::ring(int rank) const {
  RankState& me = this->rank(rank);
  if (me.sleepers.load(std::memory_order_seq_cst) == 0) return;
  me.doorbell.fetch_add(1, std::memory_order_seq_cst);
  wake_all(me.doorbell);
}

void ControlPage::ring_all() const {
  for (int r = 0; r < world_; ++r) {
    rank(r).doorbell.fetch_add(1, std::memory_order_seq_cst);
    wake_all(rank(r).doorbell);
  }
}

}  // namespace ofsdp::fsdp
