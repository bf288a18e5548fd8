// Philox 4x32-10 on the device, bit by bit that of kernels/core/philox.h, whose functions are the
// host's.
#pragma once

#include "kernels/cuda/random/random.h"

namespace ofsdp::kernels::cuda {

struct PhiloxKey {
  uint32_t low, high;
};

__host__ __device__ inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

__host__ __device__ inline PhiloxKey key_of(const RandomInput& r, uint64_t node_seed) {
  constexpr uint64_t kGamma = 0x9e3779b97f4a7c15u;
  uint64_t key = mix64(r.seed + kGamma);
  key = mix64((key ^ node_seed) + kGamma);
  key = mix64((key ^ static_cast<uint64_t>(r.step)) + kGamma);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

__host__ __device__ inline void philox(uint64_t block, uint64_t sample, PhiloxKey k,
                                       uint32_t* words) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = static_cast<uint32_t>(sample), c3 = static_cast<uint32_t>(sample >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k.low;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k.high;
    c3 = static_cast<uint32_t>(p0);
    k.low += 0x9E3779B9u;
    k.high += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

}  // namespace ofsdp::kernels::cuda
