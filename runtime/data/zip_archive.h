// The members of a .zip file, as far as .npz files need them: stored or deflated, with sizes of 64
// bits (APPNOTE.TXT 6.3, sections 4.3 and 4.5.3). No encryption, no several disks.
//
// Errors: kInput naming file and member. Every offset and length
// is checked against the file.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/byte_source.h"

namespace ofsdp::runtime {

struct ZipMember {
  std::string name;
  bool deflated = false;  // else stored
  uint64_t header = 0;    // where its local header stands
  uint64_t packed = 0;    // bytes in the file
  uint64_t bytes = 0;
  uint32_t crc = 0;
};

Result<std::vector<ZipMember>> zip_members(const ByteSource& source);

// Finds the member's first byte.
Result<uint64_t> member_offset(const ByteSource& source, const ZipMember& member);

// The first bytes of a deflated member, as many as fit into `dst` or as there are.
Result<size_t> inflate_member_prefix(const ByteSource& source, const ZipMember& member,
                                     std::span<std::byte> dst);
// All of it, with its checksum. REQUIRES: dst.size() == member.bytes.
Status inflate_member(const ByteSource& source, const ZipMember& member, std::span<std::byte> dst);

}  // namespace ofsdp::runtime
