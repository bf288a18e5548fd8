// Gzip files (RFC 1952; several members in a row count as one), inflated from a ByteSource.
//
// Ownership: views; nothing is kept. Threads: any. zlib and the read buffer allocate: not for use
// in the training loop. Errors: kInput naming the file, and the bytes expected and found where a
// stream is truncated, damaged, or of another length.
#pragma once

#include "runtime/data/byte_source.h"

namespace ofsdp::runtime {

bool starts_like_gzip(std::span<const std::byte> bytes);

// Whether the file can inflate to so many bytes at all: asked before memory is asked for.
Status check_inflated_size(const ByteSource& source, size_t bytes);

// The first bytes of the inflated data, as many as fit into `dst` or as there are in order.
Result<size_t> inflate_prefix(const ByteSource& source, std::span<std::byte> dst);

// All of the inflated data, which must be exactly dst.size() bytes.
Status inflate_all(const ByteSource& source, std::span<std::byte> dst);

}  // namespace ofsdp::runtime
