// CRC-32C (Castagnoli), the checksum of a checkpoint's bytes; the polynomial that
// processors have an instruction for, so that checking costs little next to reading.
//
// crc32c(b, crc32c(a)) is that of a followed by b. Follows RFC 3720, appendix B.4.
// Ownership: none. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ofsdp::fsdp {

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace ofsdp::fsdp
