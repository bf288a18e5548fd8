#include "runtime/data/permutation.h"

#include <bit>

#include "runtime/data/counter_random.h"

namespace ofsdp::runtime {

// At least 16 values: over fewer the rounds have too few functions to choose from.
Permutation::Permutation(int64_t size, uint64_t seed, uint64_t stream)
    : size_(static_cast<uint64_t>(size)) {
  while (2 * half_bits_ < static_cast<int>(std::bit_width(size_ - 1))) ++half_bits_;
  const uint64_t key = mix_bits(mix_bits(seed), stream);
  for (int round = 0; round < kRounds; ++round) {
    keys_[static_cast<size_t>(round)] = mix_bits(key, static_cast<uint64_t>(round));
  }
}

int64_t Permutation::at(int64_t index) const {
  auto value = static_cast<uint64_t>(index);
  do value = encrypt(value);
  while (value >= size_);
  return static_cast<int64_t>(value);
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t key : keys_) {
    const uint64_t next = left ^ (mix_bits(right ^ key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

}  // namespace ofsdp::runtime
