#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <array>
#include <cstring>

#include "fsdp/checkpoint/disk.h"

namespace ofsdp::fsdp {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t state = i;
    for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ ((state & 1) != 0 ? kPolynomial : 0);
    table[i] = state;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

uint32_t by_table(std::span<const std::byte> bytes, uint32_t state) {
  for (std::byte byte : bytes) {
    state = state >> 8 ^ kTable[(state ^ std::to_integer<uint32_t>(byte)) & 0xff];
  }
  return state;
}

// ARMv8.1 has the instruction, ARMv8.0 may lack it.
__attribute__((target("+crc"))) uint32_t by_instruction(std::span<const std::byte> bytes,
                                                        uint32_t state) {
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    state = __crc32cd(state, word);
  }
  for (; at < bytes.size(); ++at) {
    state = __crc32cb(state, std::to_integer<unsigned char>(bytes[at]));
  }
  return state;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  const bool has = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
  return ~(has ? by_instruction(bytes, ~before) : by_table(bytes, ~before));
}

}  // namespace ofsdp::fsdp
