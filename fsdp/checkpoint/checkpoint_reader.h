// CheckpointReader: an opened checkpoint, from which any rank of any world reads any elements.
//
// `open` reads the manifest, looks at the sizes of all files and sees to it that every element of
// every tensor is there. `verify` compares the checksums of one share of all bytes, so that the
// ranks of a run together check everything once. `read` takes the blocks that overlap what is asked
// for, no others, and checks them again.
//
// Memory: one block of kChecksumBlock bytes, in `verify` one a thread. Ownership: owns what it has
// open. Threads: one. Errors: kInput, beginning with the folder: what is missing, short, foreign or
// changed.
#pragma once

#include <map>
#include <span>

#include "fsdp/checkpoint/block_reader.h"
#include "fsdp/checkpoint/manifest.h"

namespace ofsdp::fsdp {

class CheckpointReader {
 public:
  static Result<CheckpointReader> open(const std::string& folder);

  const Manifest& manifest() const { return manifest_; }
  const std::string& folder() const { return folder_; }

  Status verify(int share, int shares, int threads = 1) const;
  // Elements first .. first + dst.size() - 1 of a trained parameter or a state of its optimizer.
  Status read(const std::string& kind, const std::string& name, int64_t first,
              std::span<float> dst);
  // Whole running statistics as `rank` had them; of rank 0 where that rank was not there.
  Status read_statistic(const std::string& name, int rank, std::span<float> dst);

 private:
  // Elements of a tensor and where they are: `at` elements from the start of a slice.
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
