// CheckpointReader: an open checkpoint, from which any rank in any world size reads any elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/checkpoint/manifest.h"
#include "kernels/base/posix_file.h"

namespace ofsdp::fsdp {

// Opens a file that the manifest lists.
Result<OpenFile> open_listed(const std::string& folder, const std::string& name);

// Reads the files of a checkpoint in blocks and compares checksums. Has one file open and one block
// of kChecksumBlock bytes; each thread needs a reader. Errors: kInput if a file is missing, short
// or changed; kFault if that is not proved ([Note: harmed or unreadable]).
class BlockReader {
 public:
  explicit BlockReader(std::string folder);

  // Reads block number `block` of a slice, dst.size() bytes.
  Status read(const CheckpointFile& file, const Slice& slice, int64_t block,
              std::span<std::byte> dst);
  // Reads the block into memory that the next call overwrites.
  Result<std::span<const std::byte>> read(const CheckpointFile& file, const Slice& slice,
                                          int64_t block);
  // Checks all bytes between the slices. `save`: Manifest::save.
  Status check_header(const CheckpointFile& file, const std::string& save);

 private:
  Status use_file(const std::string& name);

  std::string folder_;
  std::vector<std::byte> block_;
  std::string name_;  // of file_, or empty
  OpenFile file_;
};

// Errors: kInput, beginning with the folder, if something is missing, short, foreign or changed.
class CheckpointReader {
 public:
  // Reads the manifest, and checks the size of all files and that no element of a tensor is
  // missing.
  static Result<CheckpointReader> open(const std::string& folder);

  const Manifest& manifest() const { return manifest_; }
  const std::string& folder() const { return folder_; }

  // Checks the checksums of one share of all bytes, so that the ranks of a run together check
  // everything once.
  Status verify(int share, int shares, int threads = 1) const;
  // Reads elements first .. first + dst.size() - 1 of a trained parameter or an optimizer state.
  // Reads only blocks that overlap them, and checks these again.
  Status read(const std::string& kind, const std::string& name, int64_t first,
              std::span<float> dst);
  // Reads the running statistics of `rank`, or of rank 0 if there was no such rank.
  Status read_statistic(const std::string& name, int rank, std::span<float> dst);

 private:
  // Elements of a tensor, which begin `at` elements after the start of a slice.
  struct Extent {
    size_t file = 0, slice = 0;
    int64_t at = 0;
    int64_t first = 0, count = 0;
  };
  using Key = std::pair<std::string, std::string>;  // kind, name

  explicit CheckpointReader(const std::string& folder) : folder_(folder), blocks_(folder) {}
  Status check_sizes() const;
  void index_slice(size_t file, size_t slice);
  void index_unit(size_t file, size_t slice);
  Status check_coverage();
  Status read_extent(const Extent& extent, int64_t first, std::span<float> dst);

  std::string folder_;
  Manifest manifest_;
  std::map<Key, std::vector<Extent>> extents_;                // by first element, without overlaps
  std::map<std::pair<std::string, int>, Extent> statistics_;  // name, rank
  BlockReader blocks_;
};

}  // namespace ofsdp::fsdp
