#include "fsdp/comm/communicator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::fsdp {
namespace {

// The compiler's vector types instead of a pragma, so that build flags do not matter.
using Floats = float __attribute__((vector_size(64), aligned(4), may_alias));
using Bits32 = uint32_t __attribute__((vector_size(64)));
using Bits16 = uint16_t __attribute__((vector_size(32), aligned(2), may_alias));
constexpr int64_t kLanes = 16;

// Returns no vectors by value, since instruction sets differ in how they pass them.
[[gnu::always_inline]] inline void load(const float* x, Floats& v) {
  v = *reinterpret_cast<const Floats*>(x);
}
[[gnu::always_inline]] inline void load(const BFloat16* x, Floats& v) {
  const auto& bits = *reinterpret_cast<const Bits16*>(x);
  v = reinterpret_cast<Floats>(__builtin_convertvector(bits, Bits32) << 16);
}
[[gnu::always_inline]] inline void load(const Half* x, Floats& v) {
  for (int64_t lane = 0; lane < kLanes; ++lane) v[lane] = as_float(x[lane]);
}

// Sums all sources in one pass, so that each element is read and written once. With kOnto the sum
// starts from dst.
template <int kCount, bool kOnto, typename T>
[[gnu::always_inline]] inline void sum_fixed(const T* const* sources, int64_t numel, float* dst) {
  int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    Floats sum, next;
    kOnto ? load(dst + i, sum) : load(sources[0] + i, sum);
    for (int s = kOnto ? 0 : 1; s < kCount; ++s) {
      load(sources[s] + i, next);
      sum += next;
    }
    *reinterpret_cast<Floats*>(dst + i) = sum;
  }
  for (; i < numel; ++i) {
    float sum = kOnto ? dst[i] : as_float(sources[0][i]);
    for (int s = kOnto ? 0 : 1; s < kCount; ++s) sum += as_float(sources[s][i]);
    dst[i] = sum;
  }
}

// A case for each count lets the loop over sources unroll.
template <bool kOnto, typename T>
OFSDP_MULTIARCH void sum_up_to_four(const T* const* sources, int count, int64_t numel, float* dst) {
  switch (count) {
    case 1:
      return sum_fixed<1, kOnto>(sources, numel, dst);
    case 2:
      return sum_fixed<2, kOnto>(sources, numel, dst);
    case 3:
      return sum_fixed<3, kOnto>(sources, numel, dst);
    default:
      return sum_fixed<4, kOnto>(sources, numel, dst);
  }
}

// Adds four sources at a time to the sum, which keeps the order.
template <typename T>
void sum_sources(std::span<const std::byte* const> sources, int64_t numel, float* dst,
                 const float* onto) {
  if (onto != nullptr && onto != dst) {
    std::memcpy(dst, onto, static_cast<size_t>(numel) * sizeof(float));
  }
  const T* pass[4];
  for (size_t next = 0; next < sources.size(); next += 4) {
    const size_t count = std::min<size_t>(4, sources.size() - next);
    for (size_t s = 0; s < count; ++s) pass[s] = reinterpret_cast<const T*>(sources[next + s]);
    if (next == 0 && onto == nullptr) {
      sum_up_to_four<false>(pass, static_cast<int>(count), numel, dst);
    } else {
      sum_up_to_four<true>(pass, static_cast<int>(count), numel, dst);
    }
  }
}

constexpr int64_t kPiece = 1024;  // stays in the first-level cache with the rounded values

// The communicator for a run with one rank: it never waits. So the session needs no special case.

class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "self"; }

  Result<std::byte*> allocate_shared(MemoryLedger& ledger, size_t bytes, Sizes) override {
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

void add_elements(const std::byte* src, DType from, float* dst, int64_t numel) {
  with_stored_float(from, [&](auto zero) {
    const auto* values = reinterpret_cast<const decltype(zero)*>(src);
    sum_up_to_four<true>(&values, 1, numel, dst);
  });
}

void round_elements(float* values, DType to, int64_t numel) {
  if (to == DType::kFloat32) return;
  alignas(64) std::array<uint16_t, kPiece> narrowed;
  for (int64_t begin = 0; begin < numel; begin += kPiece) {
    const int64_t count = std::min(kPiece, numel - begin);
    narrow(values + begin, to, narrowed.data(), count);
    widen(to, narrowed.data(), values + begin, count);
  }
}

void sum_in_rank_order(std::span<const std::byte* const> sources, DType dtype, int64_t numel,
                       float* dst, const float* onto) {
  with_stored_float(dtype,
                    [&](auto zero) { sum_sources<decltype(zero)>(sources, numel, dst, onto); });
}

void convert_elements(const std::byte* src, DType from, std::byte* dst, DType to, int64_t numel) {
  if (src == dst || numel == 0) return;
  if (from == to) {
    std::memcpy(dst, src, static_cast<size_t>(numel) * dtype_size(from));
    return;
  }
  const WidthSpan span = width_span(from, to);
  OFSDP_CHECK(span != nullptr, "conversion from {} to {}", dtype_name(from), dtype_name(to));
  span(src, dst, 0, numel);
}

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace ofsdp::fsdp
