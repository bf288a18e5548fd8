// Philox 4x32-10, a counter-based random generator (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011; constants and known answers from Random123). A pure function: a
// 128-bit counter and a 64-bit key give 128 random bits, so any rank can draw any element by
// itself, in any order.
//
// [Note: what dropout draws] The key is philox_key(seed, node_seed, step): the run's seed, the
// node's (node_seed in importer/graph/graph.h hashes its name), and the update's number, from 0.
// `sample` is the sample's global number (StepContext::sample_index). Neither rank nor micro-batch
// is part of a draw, so both may change without changing the bits.
//
// Element e in a sample is word (e / 16) % 4 in the block with counter {block low, block high,
// sample low, sample high}, where block = e / 64 * 16 + e % 16. Sixteen neighbouring blocks give 64
// neighbouring elements, so a kernel can compute sixteen blocks in vector lanes and store the words
// in order.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/formula.h"

namespace ofsdp::kernels {

template <int N>
struct PhiloxWords {  // an array that device code may index
  uint32_t words[N];
  OFSDP_HD constexpr uint32_t operator[](uint64_t i) const { return words[i]; }
  bool operator==(const PhiloxWords&) const = default;
};
using PhiloxCounter = PhiloxWords<4>;
using PhiloxKey = PhiloxWords<2>;

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr uint32_t kPhiloxRounds = 10;

OFSDP_HD constexpr PhiloxCounter philox4x32(PhiloxCounter c, PhiloxKey k) {
  for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxMultiplier0} * c[0];
    const uint64_t p1 = uint64_t{kPhiloxMultiplier1} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k = {k[0] + kPhiloxWeyl0, k[1] + kPhiloxWeyl1};
  }
  return c;
}

// SplitMix64's finaliser: a bijection in which every bit depends on every other.
OFSDP_HD constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// SplitMix64's generator as a hash: the finaliser after one increment.
OFSDP_HD constexpr uint64_t split_mix64(uint64_t x) { return mix64(x + 0x9e3779b97f4a7c15u); }

OFSDP_HD constexpr PhiloxKey philox_key(uint64_t seed, uint64_t node_seed, int64_t step) {
  uint64_t key = split_mix64(seed);
  key = split_mix64(key ^ node_seed);
  key = split_mix64(key ^ static_cast<uint64_t>(step));
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

// Returns the words of a block in a sample; see the note above.
OFSDP_HD constexpr PhiloxCounter philox_block(PhiloxKey key, uint64_t sample, uint64_t block) {
  return philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                     static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                    key);
}

// Returns 32 random bits for an element in a sample; see the note above.
OFSDP_HD constexpr uint32_t philox_element(PhiloxKey key, uint64_t sample, uint64_t element) {
  const uint64_t block = element / 64 * 16 + element % 16, word = element / 16 % 4;
  const PhiloxCounter bits = philox_block(key, sample, block);
  // A computed index would put the words of a GPU's thread into memory.
  return word == 0 ? bits[0] : word == 1 ? bits[1] : word == 2 ? bits[2] : bits[3];
}

// Philox in vector lanes, for many elements at once: the same bits as philox_element. Each
// processor folder under kernels/cpu has one with intrinsics, because gcc's vectoriser takes three
// multiplications for a 32-bit product. best_philox_fill() returns the fastest for this processor.
// A kernel asks it once, while planning, because it allocates.

inline constexpr int64_t kPhiloxGroup = 64;  // a fill's unit: sixteen blocks' elements

// Writes bits[0 .. 64 * groups - 1] for the elements of sample `sample` from element 64 *
// first_group on. REQUIRES: `bits` is 64-byte aligned.
using PhiloxFill = void (*)(PhiloxKey key, uint64_t sample, int64_t first_group, int64_t groups,
                            uint32_t* bits);

PhiloxFill best_philox_fill();
std::vector<PhiloxFill> vector_philox_fills();  // with intrinsics that this processor has
std::vector<PhiloxFill> all_philox_fills();     // the same and a plain one, best first; for tests

}  // namespace ofsdp::kernels
