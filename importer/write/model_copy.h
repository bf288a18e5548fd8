// ModelCopy: a trained copy of a model in a folder, written by all ranks at once without a message
// between them: the layout follows from the input file alone (model_layout.h).
//
//   every rank   write(i, first, values) for its elements of the values that change
//   one rank     write_rest: everything else
//   every rank   sync
// Together they make the model and its external data, in any order.
//
// `plan` is for an empty folder. Data files keep the names that the input gives them unless one of
// these leads into a folder or is taken; else they are NAME.data, NAME.1.data, ... `make` is for
// files that exist: the temporaries of a ModelOutput.
//
// Borrows the input, which write_rest reads. Threads: any after `plan`. Errors: kFault naming the
// file.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "importer/write/model_layout.h"

namespace ofsdp::importer {

class ModelCopy {
 public:
  struct File {
    std::string name;
    int64_t bytes = 0;
  };

  // `changing`: the initializers, by index, whose values the ranks write. `taken`: names in the
  // folder that are somebody else's.
  static Result<ModelCopy> plan(const OnnxFile& input, const std::string& name,
                                const std::vector<int>& changing,
                                const std::vector<std::string>& taken);

  // `names` in the folder: the model, then its data files, which the model calls `locations`.
  // `creates`: whether files may have to be made.
  static Result<ModelCopy> make(const OnnxFile& input, const std::vector<std::string>& names,
                                const std::vector<std::string>& locations,
                                const std::vector<int>& changing, bool creates);

  const std::vector<File>& files() const { return files_; }
  const ModelLayout& layout() const { return layout_; }
  const Initializer& initializer(int index) const {
    return layout_.initializers[static_cast<size_t>(index)];
  }
  // Returns whether its bytes in the file are the values as float32, one after the other.
  bool is_plain(int index) const;

  // Integers of that weight are from now on made with these scales.
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

  // Returns the bytes of changing values in one file, in order.
  std::vector<Range> changing_ranges(const std::vector<Initializer>& list, int file) const;

  // Copies bytes [begin, end) of `src` but those to skip; begin goes to `target`.
  Status copy_around(const OpenFile& src, int64_t begin, int64_t end, const OpenFile& dst,
                     int64_t target, const std::vector<Range>& skip,
                     const std::atomic<bool>& cancelled) const;

  // A list in the input becomes raw data without a way by float32.
  Status copy_integers(const Initializer& from, const Initializer& to, const OpenFile& file) const;

  bool changes(int initializer) const;

  const OnnxFile* input_ = nullptr;
  std::vector<File> files_;
  ModelLayout layout_;
  std::vector<int> changing_;  // sorted
  bool creates_ = true;
};

}  // namespace ofsdp::importer
