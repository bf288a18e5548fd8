// BlockReader: the bytes of a checkpoint's files, in blocks whose checksums it compares.
//
// Memory: one block of kChecksumBlock bytes. Ownership: owns what it has open, one file at a time.
// Threads: one; as many readers as threads. Errors: kInput, beginning with the file: what is
// missing, short or changed; kFault for what does not prove harm ([Note: harmed or unreadable]).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fsdp/checkpoint/manifest.h"
#include "kernels/base/posix_file.h"

namespace ofsdp::fsdp {

// A file that the manifest lists.
Result<OpenFile> open_listed(const std::string& folder, const std::string& name);

class BlockReader {
 public:
  explicit BlockReader(std::string folder);

  // Block number `block` of a slice, of dst.size() bytes.
  Status read(const CheckpointFile& file, const Slice& slice, int64_t block,
              std::span<std::byte> dst);
  // The same into memory of the reader's own, which the next call overwrites.
  Result<std::span<const std::byte>> read(const CheckpointFile& file, const Slice& slice,
                                          int64_t block);
  // All bytes between the slices. `save`: Manifest::save.
  Status check_header(const CheckpointFile& file, const std::string& save);

 private:
  Status use_file(const std::string& name);

  std::string folder_;
  std::vector<std::byte> block_;
  std::string name_;  // of file_; empty: none
  OpenFile file_;
};

}  // namespace ofsdp::fsdp
