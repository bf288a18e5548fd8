#include <nmmintrin.h>  // SSE4.2, which the baseline x86-64-v2 has

#include <cstring>

#include "fsdp/checkpoint/disk.h"

namespace ofsdp::fsdp {

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  uint64_t state = ~before;
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    state = _mm_crc32_u64(state, word);
  }
  auto rest = static_cast<uint32_t>(state);
  for (; at < bytes.size(); ++at) {
    rest = _mm_crc32_u8(rest, std::to_integer<unsigned char>(bytes[at]));
  }
  return ~rest;
}

}  // namespace ofsdp::fsdp
