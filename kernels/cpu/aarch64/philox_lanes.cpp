// Philox for NEON: a vector holds one counter word for four blocks.
#include <arm_neon.h>

#include "kernels/core/philox.h"

namespace ofsdp::kernels {
namespace {

struct Product {
  uint32x4_t high, low;
};

[[gnu::always_inline]] inline Product multiply(uint32x4_t x, uint32x4_t m) {
  const uint32x4_t first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(x), vget_low_u32(m)));
  const uint32x4_t second = vreinterpretq_u32_u64(vmull_high_u32(x, m));
  return {vuzp2q_u32(first, second), vuzp1q_u32(first, second)};
}

void fill_neon(PhiloxKey key, uint64_t sample, int64_t first_group, int64_t groups,
               uint32_t* bits) {
  const uint32x4_t m0 = vdupq_n_u32(kPhiloxMultiplier0), m1 = vdupq_n_u32(kPhiloxMultiplier1);
  uint32x4_t k0[kPhiloxRounds], k1[kPhiloxRounds];
  for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
    k0[round] = vdupq_n_u32(key[0] + kPhiloxWeyl0 * round);
    k1[round] = vdupq_n_u32(key[1] + kPhiloxWeyl1 * round);
  }
  constexpr uint32_t kLanes[] = {0, 1, 2, 3};
  const uint32x4_t lanes = vld1q_u32(kLanes);
  for (int64_t quarter = 0; quarter < 4 * groups; ++quarter) {
    const auto block = static_cast<uint64_t>(first_group * 4 + quarter) * 4;
    uint32x4_t c0 = vaddq_u32(vdupq_n_u32(static_cast<uint32_t>(block)), lanes);
    uint32x4_t c1 = vdupq_n_u32(static_cast<uint32_t>(block >> 32));
    uint32x4_t c2 = vdupq_n_u32(static_cast<uint32_t>(sample));
    uint32x4_t c3 = vdupq_n_u32(static_cast<uint32_t>(sample >> 32));
    for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
      const Product p0 = multiply(c0, m0);
      const Product p1 = multiply(c2, m1);
      c0 = veorq_u32(veorq_u32(p1.high, c1), k0[round]);
      c1 = p1.low;
      c2 = veorq_u32(veorq_u32(p0.high, c3), k1[round]);
      c3 = p0.low;
    }
    uint32_t* to = bits + quarter / 4 * kPhiloxGroup + quarter % 4 * 4;
    vst1q_u32(to, c0);
    vst1q_u32(to + 16, c1);
    vst1q_u32(to + 32, c2);
    vst1q_u32(to + 48, c3);
  }
}

}  // namespace

std::vector<PhiloxFill> vector_philox_fills() { return {fill_neon}; }

}  // namespace ofsdp::kernels
