// ImageList: the files of a column with a file for each sample, images or others, as one block of
// bytes that ranks share.
//
// `list_images` finds the files of folders or the members of shards; read_headers reads the headers
// of images, read_array_headers of .npy members. `pack_images` makes the block, and ImageView reads
// one. All offsets count from the block's beginning.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "runtime/data/data_spec.h"
#include "runtime/data/images/image.h"

namespace ofsdp::runtime {

// `bytes` bytes of the file `path` from `offset`. Messages call it `name`, which is a member's path
// below its shard.
struct ImageFile {
  std::string path, name;
  uint64_t offset = 0, bytes = 0;
  int64_t label = 0;
  ImageHeader header = {};
};

struct ImageList {
  std::vector<ImageFile> files;
  std::vector<std::string> classes;  // of `label`, sorted by their bytes; empty: none
  DType dtype = DType::kUInt8;       // of arrays
  std::vector<int64_t> dims = {};    // of an array

  // For ColumnSpec::known: renumbers, or returns an error for a class that is not among them.
  Status order_classes(const std::string& origin, const ClassNames& known);
};

// Finds the files, and reads the classes of shards. Reads no header.
Result<ImageList> list_images(const ImageSource& source);
// The part of list_images for shards (tar_list.cpp).
Result<ImageList> list_members(const ImageSource& source);

// Returns the names that "s-{000..009}.tar" stands for, numbers of one width; empty if braces hold
// something else.
std::vector<std::string> numbered_shards(const std::string& name);
// Returns the extensions of the first sample's members.
Result<std::vector<std::string>> first_members(const std::string& shard);

// Reads all headers, on so many threads, and checks depth and size against each other and `source`.
Status read_headers(ImageList& list, const ImageSource& source, int threads);

// Reads the headers of .npy members, which must be alike, and lets the files begin after them.
Status read_array_headers(ImageList& list);

// The most that decoding one image of the list needs, each alone.
struct ImageLimits {
  uint64_t file_bytes = 0, pixel_bytes = 0, codec_bytes = 0;
  int64_t width = 0, height = 0;
};

std::vector<std::byte> pack_images(const ImageList& list);

class ImageView {
 public:
  struct Entry {
    uint64_t path = 0, name = 0;  // texts, which end with a zero byte
    uint64_t offset = 0, bytes = 0;
    ImageHeader header = {};
  };

  ImageView() = default;
  explicit ImageView(std::span<const std::byte> block);

  int64_t count() const { return static_cast<int64_t>(entries_.size()); }
  const Entry& entry(int64_t i) const { return entries_[static_cast<size_t>(i)]; }
  const char* path(int64_t i) const { return names_ + entry(i).path; }
  const char* name(int64_t i) const { return names_ + entry(i).name; }
  uint64_t labels_offset() const { return labels_; }  // int64, one for each file
  std::vector<std::string> classes() const;
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& dims() const { return dims_; }
  ImageLimits limits(int channels) const;

 private:
  std::span<const Entry> entries_;
  const char* names_ = nullptr;
  uint64_t labels_ = 0;
  const char* classes_ = nullptr;
  uint64_t class_count_ = 0;
  DType dtype_ = DType::kUInt8;
  std::vector<int64_t> dims_;
};

}  // namespace ofsdp::runtime
