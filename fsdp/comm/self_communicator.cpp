// The communicator for a run with one rank: it never waits. So the session needs no special case.
#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/rank_sum.h"

namespace ofsdp::fsdp {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "self"; }

  Result<std::byte*> allocate_shared(MemoryLedger& ledger, size_t bytes) override {
    OFSDP_ASSIGN_OR_RETURN(
        segment_, Region::map(ledger, bytes, Region::Sharing::kPrivate, "shards and gradients"));
    return segment_.data();
  }

  Status all_gather(const RankGroup&, const ShardSource& source, std::byte* dst, DType dst_dtype,
                    const CollectiveSite&) override {
    convert_elements(segment_.data() + source.offset, source.dtype, dst, dst_dtype, source.numel);
    return {};
  }

  Status acquire(int, const RankGroup&, const CollectiveSite&) override { return {}; }
  void post(int, const RankGroup&, const SlotSource&) override {}

  Status reduce_scatter(int, const RankGroup&, const SlotSource& slot, BlockSink sink,
                        const CollectiveSite&) override {
    const auto first = static_cast<size_t>(std::max<int64_t>(slot.first, 0));
    std::byte* src = segment_.data() + slot.offset + first * dtype_size(slot.dtype);
    for (int64_t begin = 0; begin < slot.numel; begin += kReduceBlock) {
      const int64_t count = std::min(kReduceBlock, slot.numel - begin);
      if (slot.dtype == DType::kFloat32 && slot.onto == nullptr) {  // the slot is the sum
        sink(begin, {reinterpret_cast<float*>(src) + begin, static_cast<size_t>(count)});
        continue;
      }
      const std::byte* block = src + static_cast<size_t>(begin) * dtype_size(slot.dtype);
      sum_in_rank_order({&block, 1}, slot.dtype, count, block_.data(),
                        slot.onto != nullptr ? slot.onto + begin : nullptr);
      sink(begin, {block_.data(), static_cast<size_t>(count)});
    }
    return {};
  }

  Status all_reduce(int, const RankGroup&, const SlotSource&, const CollectiveSite&) override {
    return {};
  }

  Status exchange(std::span<const double> mine, std::span<double> all,
                  const CollectiveSite&) override {
    OFSDP_CHECK(mine.size() <= kMaxExchange && all.size() == mine.size(), "{} doubles into {}",
                mine.size(), all.size());
    std::copy(mine.begin(), mine.end(), all.begin());
    return {};
  }

  Status barrier(const CollectiveSite&) override { return {}; }

  Result<std::span<const std::byte>> share_from_rank0(
      MemoryLedger& ledger, size_t bytes, const std::string& name,
      Status (*fill)(void* context, std::span<std::byte> bytes), void* context) override {
    OFSDP_ASSIGN_OR_RETURN(Region region,
                           Region::map(ledger, bytes, Region::Sharing::kPrivate, name));
    OFSDP_RETURN_IF_ERROR(fill(context, {region.data(), bytes}));
    shared_.push_back(std::move(region));
    return std::span<const std::byte>(shared_.back().data(), bytes);
  }

  bool fail(const Status& status) override {
    int nothing = 0;
    return exit_status_.compare_exchange_strong(nothing,
                                                status.kind() == ErrorKind::kInput ? 2 : 1);
  }
  int exit_status() const override { return exit_status_; }
  Status leave() override { return {}; }

 private:
  Region segment_;
  alignas(kTensorAlignment) std::array<float, kReduceBlock> block_;
  std::vector<Region> shared_;
  std::atomic<int> exit_status_{0};
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace ofsdp::fsdp
