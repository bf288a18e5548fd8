// CheckpointStore: the folder with a run's checkpoints, for the one run that writes there.
//
//     DIR/.lock                       held while a run writes here
//     DIR/.step-00000120.TOKEN.tmp/   a save under way, or one that a killed run left
//     DIR/step-00000100/              complete: it has a manifest.json
//     DIR/best                        symbolic link to the checkpoint with the best evaluation
//     DIR/bad-step-00000080/          one that --resume latest found harmed and passed over
//
// To save, every rank writes files and a manifest part (`write_part`) into the temporary folder.
// After all ranks have done so, rank 0 must call `commit`, which writes the manifest last, syncs
// every file, renames the folder in one step, and only then removes older checkpoints, but never
// the last good one.
//
// Calls must not overlap; `commit` may run on another thread than `open`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/checkpoint/disk.h"
#include "fsdp/checkpoint/manifest.h"
#include "kernels/base/posix_file.h"

namespace ofsdp::fsdp {

std::string checkpoint_name(int64_t step);  // "step-00000120"

// Returns complete checkpoints' names in a folder, the latest first. Returns kFault if the folder
// cannot be listed.
Result<std::vector<std::string>> complete_checkpoints(const std::string& dir);

// Returns a save's temporary folder.
std::string save_folder(const std::string& dir, int64_t step, const std::string& token);
// Writes a rank's part of the manifest: the files that it wrote.
Status write_part(const std::string& folder, int rank, const std::vector<CheckpointFile>& files);

class CheckpointStore {
 public:
  // Makes the folder if it is absent, takes the lock, and removes temporary folders that killed
  // runs left there; does not touch names with another form. Returns kInput if the folder cannot be
  // made or locked, kFault if a manifest cannot be read.
  static Result<CheckpointStore> open(const std::string& dir, const Retention& retention);

  // Joins all ranks' parts. `manifest` has everything except files and sequence. Returns kFault
  // with the path if that fails.
  Status commit(const std::string& folder, Manifest manifest);
  // Returns the newest checkpoint's name, or "".
  std::string newest() const { return entries_.empty() ? "" : entries_.back().name; }
  // Renames a harmed checkpoint, so that it is not used again.
  void set_aside(const std::string& name);
  // Returns true if the evaluation is better than all in the folder.
  bool is_best(const SavedEvaluation& evaluation) const;

 private:
  struct Entry {
    std::string name;
    int64_t sequence = 0;
    std::optional<SavedEvaluation> evaluation;
  };

  Status gather_parts(const std::string& folder, Manifest& manifest) const;
  bool better(const SavedEvaluation& a, const SavedEvaluation& b) const;
  const Entry* best() const;
  Status link_best() const;
  std::string linked_best() const;  // empty if there is no link
  Status remove_old();

  std::string dir_;
  Retention retention_;
  LockedFile lock_;
  std::vector<Entry> entries_;  // by sequence
};

// CheckpointReader: an open checkpoint, from which any rank in any world size reads any elements.

// Opens a file that the manifest lists, and checks its size.
Result<OpenFile> open_listed(const std::string& folder, const CheckpointFile& file);

// Reads a checkpoint's files in blocks and compares checksums. Has one file open and one block with
// kChecksumBlock bytes; each thread needs a reader. Errors: kInput if a file is missing, short or
// changed; kFault if that is not proved ([Note: harmed or unreadable]).
class BlockReader {
 public:
  explicit BlockReader(std::string folder);

  // Reads block `block` in a slice, dst.size() bytes.
  Status read(const CheckpointFile& file, const Slice& slice, int64_t block,
              std::span<std::byte> dst);
  // Reads the block into memory that the next call overwrites.
  Result<std::span<const std::byte>> read(const CheckpointFile& file, const Slice& slice,
                                          int64_t block);
  // Checks all bytes between the slices. `save`: Manifest::save.
  Status check_header(const CheckpointFile& file, const std::string& save);

 private:
  Status use_file(const CheckpointFile& file);

  std::string folder_;
  std::vector<std::byte> block_;
  std::string name_;  // file_'s name, or empty
  OpenFile file_;
};

// Errors: kInput, beginning with the folder, if something is missing, short, foreign or changed.
class CheckpointReader {
 public:
  // Reads the manifest, and checks that no tensor element is missing and the sizes in one share of
  // the files. Sizes of other files are checked once they are read.
  static Result<CheckpointReader> open(const std::string& folder, int share = 0, int shares = 1);

  const Manifest& manifest() const { return manifest_; }
  const std::string& folder() const { return folder_; }

  // Checks the checksums in one share of all bytes, so that a run's ranks together check everything
  // once. A share is contiguous: as many ranks as files open at most two files each.
  Status verify(int share, int shares, int threads = 1) const;
  // Reads elements first .. first + dst.size() - 1 from a trained parameter or an optimizer state.
  // Reads only blocks that overlap them, and checks these again.
  Status read(const std::string& kind, const std::string& name, int64_t first,
              std::span<float> dst);
  // Reads `rank`'s running statistics, or rank 0's if there was no such rank.
  Status read_statistic(const std::string& name, int rank, std::span<float> dst);

 private:
  // Elements in a tensor, which begin `at` elements into a slice.
  struct Extent {
    size_t file = 0, slice = 0;
    int64_t at = 0;
    int64_t first = 0, count = 0;
  };
  using Key = std::pair<std::string, std::string>;  // kind, name

  explicit CheckpointReader(const std::string& folder) : folder_(folder), blocks_(folder) {}
  Status check_sizes(int share, int shares) const;
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
