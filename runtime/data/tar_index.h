// The members of a .tar file, by name, offset and length, so that each can be read at random.
//
// Reads ustar (POSIX.1-1988), pax headers with `path` and `size` (POSIX.1-2001) and GNU's long
// names and base-256 sizes. Other pax records are ignored; folders are skipped; links and sparse
// files are errors, since their bytes are not in one place. Compressed archives are not read.
//
// The file is not trusted: checksums, numbers and lengths are checked. Errors are kInput with the
// file and the offset of the header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/data/byte_source.h"

namespace ofsdp::runtime {

struct TarMember {
  std::string name;
  uint64_t offset = 0, bytes = 0;  // of its content
};

Result<std::vector<TarMember>> tar_members(const ByteSource& source);

}  // namespace ofsdp::runtime
