#include "fsdp/rank_sum.h"

#include "kernels/cpu/parallel.h"

namespace ofsdp {
namespace {

// Vectors of the compiler instead of a pragma: they do not depend on the flags of the build.
using Floats = float __attribute__((vector_size(64), aligned(4), may_alias));
constexpr int64_t kLanes = 16;

// All sources in one pass: a block is read once and written once.
template <int kCount>
[[gnu::always_inline]] inline void sum_of(const float* const* sources, int64_t numel, float* dst) {
  int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    Floats sum = *reinterpret_cast<const Floats*>(sources[0] + i);
    for (int s = 1; s < kCount; ++s) sum += *reinterpret_cast<const Floats*>(sources[s] + i);
    *reinterpret_cast<Floats*>(dst + i) = sum;
  }
  for (; i < numel; ++i) {
    float sum = sources[0][i];
    for (int s = 1; s < kCount; ++s) sum += sources[s][i];
    dst[i] = sum;
  }
}

// The counts are named so that each loop over sources has a fixed length and unrolls.
OFSDP_MULTIARCH void sum_up_to_four(const float* const* sources, int count, int64_t numel,
                                    float* dst) {
  switch (count) {
    case 1:
      return sum_of<1>(sources, numel, dst);
    case 2:
      return sum_of<2>(sources, numel, dst);
    case 3:
      return sum_of<3>(sources, numel, dst);
    default:
      return sum_of<4>(sources, numel, dst);
  }
}

}  // namespace

// More than four: the sum so far is the first source of the next pass, which keeps the order.
void sum_in_rank_order(std::span<const float* const> sources, int64_t numel, float* dst) {
  const size_t first = sources.size() < 4 ? sources.size() : 4;
  sum_up_to_four(sources.data(), static_cast<int>(first), numel, dst);
  for (size_t next = first; next < sources.size();) {
    const float* pass[4] = {dst};
    int count = 1;
    while (count < 4 && next < sources.size()) pass[count++] = sources[next++];
    sum_up_to_four(pass, count, numel, dst);
  }
}

}  // namespace ofsdp
