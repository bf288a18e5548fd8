// Permutation: a shuffle of 0 .. size-1 that is computed, not stored: at(i) costs some nanoseconds,
// no memory, and no pass over the samples when an epoch begins or a run resumes in the middle of
// one.
//
// A balanced Feistel network over the next power of four, whose keys come from (seed, stream),
// walked until it lands inside (cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite
// Domains", 2002). Every rank computes the same permutation from the same three numbers.
//
// Errors: none; `size` is at least 1 and below 2^62.
#pragma once

#include <array>
#include <cstdint>

namespace ofsdp::runtime {

class Permutation {
 public:
  Permutation() = default;
  Permutation(int64_t size, uint64_t seed, uint64_t stream);
  int64_t at(int64_t index) const;

 private:
  static constexpr int kRounds = 12;

  uint64_t encrypt(uint64_t value) const;

  uint64_t size_ = 1;
  int half_bits_ = 2;
  std::array<uint64_t, kRounds> keys_{};
};

}  // namespace ofsdp::runtime
