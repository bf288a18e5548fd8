// A trained model copy in a folder, written by all ranks at once without a message between them:
// the layout depends only on the input file (lay_out_model).
//
//   every rank   write(i, first, values) for its elements in changing values
//   one rank     write_rest: everything else
//   every rank   sync
// Together, in any order, they make the model and the external data.
//
// `plan` is for an empty folder. Data files keep their names from the input unless such a name
// leads into a folder or is taken; else they become NAME.data, NAME.1.data, ... `make` is for
// existing files: a ModelOutput's temporaries.
//
// The input must outlive it; write_rest reads it. Thread-safe after `plan`. Errors: kFault naming
// the file.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "kernels/base/posix_file.h"

namespace ofsdp::importer {

// The trained file's layout: the input's bytes with as few changes as possible.
//
// Most outputs are one whole-file copy. More than values changes if
//   - an initializer with encoding kList becomes raw_data: a hole to fill;
//   - external data files get other names: their `location` entries change;
//   - an integer scalar in a training_info, encoded as a varint, becomes raw_data.
// Then these messages' lengths, and the lengths of messages around them, are encoded again, and the
// rest moves. Every rank computes the same layout from the same file and names. Errors: kFault if
// the input can no longer be read.

struct Piece {
  enum class Kind : uint8_t { kCopy, kLiteral, kHole };
  Kind kind = Kind::kCopy;
  int64_t target = 0;  // offset in the new file
  int64_t bytes = 0;
  int64_t source = 0;        // kCopy: offset in the input
  std::string literal = {};  // kLiteral
  int initializer = -1;      // kHole: index of the initializer with the elements
};

struct ModelLayout {
  std::vector<Piece> pieces;  // in order, without gaps
  int64_t bytes = 0;          // in the new file
  // The input's tensors, with positions in the new files.
  std::vector<Initializer> initializers, algorithm_tensors;
};

// `locations`: each data file's name in the new model.
Result<ModelLayout> lay_out_model(const OnnxFile& input, const std::vector<std::string>& locations);

// Writes an initializer's values to their place in a model file, in the file's type. Writes the tag
// before each element in a kStrided initializer, so ranges from different ranks make up the whole
// list. Thread-safe for different elements. Errors: kFault (disk).

// REQUIRES: `place` is not kList. Rounds to the dtype, nearest even; a quantized weight's values
// become integers.
Status write_values(const OpenFile& file, const Initializer& place, int64_t first_element,
                    std::span<const float> src);
Status write_integers(const OpenFile& file, const Initializer& place, int64_t first,
                      std::span<const int64_t> integers);

class ModelCopy {
 public:
  struct File {
    std::string name;
    int64_t bytes = 0;
  };

  // `changing`: initializers, by index, that the ranks write. `taken`: other files' names in the
  // folder.
  static Result<ModelCopy> plan(const OnnxFile& input, const std::string& name,
                                const std::vector<int>& changing,
                                const std::vector<std::string>& taken);

  // `names` in the folder: the model, then the data files, which the model calls `locations`.
  // `creates`: files may have to be created.
  static Result<ModelCopy> make(const OnnxFile& input, const std::vector<std::string>& names,
                                const std::vector<std::string>& locations,
                                const std::vector<int>& changing, bool creates);

  const std::vector<File>& files() const { return files_; }
  const ModelLayout& layout() const { return layout_; }
  const Initializer& initializer(int index) const {
    return layout_.initializers[static_cast<size_t>(index)];
  }
  // Returns whether the bytes in the file are consecutive float32 values.
  bool is_plain(int index) const;

  // Uses these scales for that weight's integers from now on.
  void rescale(int initializer, std::vector<float> scales);

  Status write(const std::string& folder, int initializer, int64_t first_element,
               std::span<const float> src) const;

  // Opens the file each time: a model may have more data files than a process may hold open.
  Status write(const std::string& folder, const Initializer& place, int64_t first_element,
               std::span<const float> src) const;

  Status write_rest(const std::string& folder, const std::atomic<bool>& cancelled) const;

  Status sync(const std::string& folder) const;

 private:
  struct Range {
    int64_t begin = 0, end = 0;
  };
  Result<OpenFile> open(const std::string& folder, size_t file) const;

  // Returns changing values' bytes in one file, in order.
  std::vector<Range> changing_ranges(const std::vector<Initializer>& list, int file) const;

  // Copies bytes [begin, end) from `src` except the skipped ones; begin goes to `target`.
  Status copy_around(const OpenFile& src, int64_t begin, int64_t end, const OpenFile& dst,
                     int64_t target, const std::vector<Range>& skip,
                     const std::atomic<bool>& cancelled) const;

  // Writes an initializer that gets raw_data: bytes and integers as they are, else floats.
  Status fill_hole(int index, const OpenFile& file) const;
  Status copy_raw(const Initializer& from, const Initializer& to, const OpenFile& file) const;

  bool changes(int initializer) const;

  const OnnxFile* input_ = nullptr;
  std::vector<File> files_;
  ModelLayout layout_;
  std::vector<int> changing_;  // sorted
  bool creates_ = true;
};

}  // namespace ofsdp::importer
