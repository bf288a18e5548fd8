// Philox 4x32-10: a counter-based random generator (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011; the constants and known answers of Random123). A pure function: 128
// bits of counter and 64 bits of key give 128 random bits, so any element can be drawn alone, in
// any order, on any rank.
//
// [Note: what dropout draws] The key is philox_key(seed, node_seed, step). Element e of a sample is
// word (e / 16) % 4 of the block with counter {block low, block high, sample low, sample high},
// where block = e / 64 * 16 + e % 16: sixteen neighbouring blocks give 64 neighbouring elements, so
// a kernel can compute sixteen blocks in vector lanes and store the words in order.
#pragma once

#include <array>
#include <cstdint>

namespace ofsdp::kernels {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr uint32_t kPhiloxRounds = 10;

constexpr PhiloxCounter philox4x32(PhiloxCounter c, PhiloxKey k) {
  for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxMultiplier0} * c[0];
    const uint64_t p1 = uint64_t{kPhiloxMultiplier1} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k = {k[0] + kPhiloxWeyl0, k[1] + kPhiloxWeyl1};
  }
  return c;
}

// The finaliser of SplitMix64: a bijection in which every bit depends on every other.
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr PhiloxKey philox_key(uint64_t seed, uint64_t node_seed, int64_t step) {
  constexpr uint64_t kGamma = 0x9e3779b97f4a7c15u;
  uint64_t key = mix64(seed + kGamma);
  key = mix64((key ^ node_seed) + kGamma);
  key = mix64((key ^ static_cast<uint64_t>(step)) + kGamma);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

// 32 random bits of element `element` of sample `sample`; see the note above.
constexpr uint32_t philox_element(PhiloxKey key, uint64_t sample, uint64_t element) {
  const uint64_t block = element / 64 * 16 + element % 16;
  const PhiloxCounter bits =
      philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                  static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                 key);
  return bits[element / 16 % 4];
}

}  // namespace ofsdp::kernels
