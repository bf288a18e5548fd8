#include "kernels/ops/pool/max_pool_loops.h"

#include <bit>
#include <limits>
#include <type_traits>

#include "kernels/cpu/parallel.h"
#include "kernels/ops/pool/pool_shape.h"

namespace ofsdp::kernels::ops {
namespace {

template <typename Step>
[[gnu::always_inline]] inline void take_tap(const float* __restrict src, Step step, int32_t number,
                                            int64_t n, float* __restrict best,
                                            int32_t* __restrict winner) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = src[i * step];
    const bool take = (v > best[i]) | (v != v) | (winner[i] < 0);  // larger, NaN, or the first
    best[i] = take ? v : best[i];
    winner[i] = take ? number : winner[i];
  }
}

template <bool kRelu, typename Step>
[[gnu::always_inline]] inline void compare_four(const float* __restrict src, const FourTaps& f,
                                                Step step, int64_t n, float* __restrict dst,
                                                uint8_t* __restrict winners) {
  const float* src1 = src + f.offsets[1];
  const float* src2 = src + f.offsets[2];
  const float* src3 = src + f.offsets[3];
  for (int64_t i = 0; i < n; ++i) {
    float best = src[i * step];
    int32_t winner = 0;
    const float candidates[3] = {src1[i * step], src2[i * step], src3[i * step]};
    for (int32_t t = 0; t < 3; ++t) {
      // As masks: compilers turn the choice into a jump in rows too short for vectors.
      const int32_t take = -int32_t{(candidates[t] > best) | (candidates[t] != candidates[t])};
      const int32_t bits =
          (std::bit_cast<int32_t>(best) & ~take) | (std::bit_cast<int32_t>(candidates[t]) & take);
      best = std::bit_cast<float>(bits);
      winner = (winner & ~take) | ((t + 1) & take);
    }
    if (kRelu) {
      winner = best > 0.0f ? winner : kNoWinner;
      best = best < 0.0f ? 0.0f : best;
    }
    dst[i] = best;
    winners[i] = static_cast<uint8_t>(winner);
  }
}

}  // namespace

// Constant steps let the compiler use vector loads and shuffles.
OFSDP_MULTIARCH void take_taps(const TapList& list, Block& block) {
  for (int t = 0; t < list.count; ++t) {
    const Tap& tap = list.taps[t];
    const float* src = tap.src + tap.begin * list.step;
    const int64_t n = tap.end - tap.begin;
    float* best = block.best + tap.begin;
    int32_t* winner = block.winner + tap.begin;
    if (list.step == 1) {
      take_tap(src, std::integral_constant<int64_t, 1>(), tap.number, n, best, winner);
    } else if (list.step == 2) {
      take_tap(src, std::integral_constant<int64_t, 2>(), tap.number, n, best, winner);
    } else {
      take_tap(src, list.step, tap.number, n, best, winner);
    }
  }
}

OFSDP_MULTIARCH void start_block(Block& block) {
  for (int64_t i = 0; i < kBlock; ++i) {
    block.best[i] = -std::numeric_limits<float>::infinity();
    block.winner[i] = kNoWinner;
  }
}

OFSDP_MULTIARCH void relu_block(Block& block) {
  for (int64_t i = 0; i < kBlock; ++i) {
    block.winner[i] = block.best[i] > 0.0f ? block.winner[i] : kNoWinner;
    block.best[i] = block.best[i] < 0.0f ? 0.0f : block.best[i];
  }
}

OFSDP_MULTIARCH void narrow_winners(const int32_t* winner, uint8_t* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<uint8_t>(winner[i]);
}

OFSDP_MULTIARCH void four_taps(const float* src, const FourTaps& f, int64_t n, float* dst,
                               uint8_t* winners) {
  const std::integral_constant<int64_t, 1> one;
  const std::integral_constant<int64_t, 2> two;
  if (f.step == 1) {
    f.relu ? compare_four<true>(src, f, one, n, dst, winners)
           : compare_four<false>(src, f, one, n, dst, winners);
  } else {
    f.relu ? compare_four<true>(src, f, two, n, dst, winners)
           : compare_four<false>(src, f, two, n, dst, winners);
  }
}

}  // namespace ofsdp::kernels::ops
