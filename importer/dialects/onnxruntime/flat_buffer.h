// FlatBuffers, read in place and bounds-checked, and written with its tables before their bytes.
//
// Only what checkpoints need (importer/dialects/onnxruntime/ort_checkpoint.h): tables, vectors of tables, of int64 and of
// bytes, strings and numbers. Own code instead of the library, because ranks read and write their
// own elements in place: the library's writer holds a whole buffer in the memory of one process.
//
// A FlatTable is a view; every offset is checked where it is followed, so no byte of a hostile file
// leads outside of it. Fields that are absent have their default. Offsets are those of the file.
// Follows https://flatbuffers.dev/internals.
//
// Ownership: views; the bytes outlive the tables. Threads: any. Errors: kInput, with byte, expected
// and found, without the file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::importer {

struct FlatBytes {  // of a vector
  int64_t offset = 0;
  int64_t count = 0;
};

class FlatTable {
 public:
  static Result<FlatTable> root(std::span<const std::byte> bytes, const std::string& identifier);

  template <typename T>
  Result<T> number(int slot, T otherwise) const {
    OFSDP_ASSIGN_OR_RETURN(const int64_t at, place(slot, sizeof(T)));
    return at == 0 ? otherwise : load<T>(at);
  }
  Result<std::string> text(int slot) const;  // "" when absent; at most kMostText bytes
  Result<std::optional<FlatTable>> table(int slot) const;
  Result<std::vector<FlatTable>> tables(int slot) const;
  Result<std::vector<int64_t>> integers(int slot) const;
  Result<std::optional<FlatBytes>> bytes(int slot) const;

 private:
  FlatTable(std::span<const std::byte> bytes, int64_t at) : bytes_(bytes), at_(at) {}
  static Result<FlatTable> at(std::span<const std::byte> bytes, int64_t at);

  template <typename T>
  T load(int64_t at) const {
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof(T));
    return value;
  }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  Result<int64_t> place(int slot, size_t bytes) const;  // 0: absent
  Result<int64_t> target(int slot) const;               // of an offset; 0: absent
  Result<FlatBytes> vector(int64_t at, int64_t element) const;

  std::span<const std::byte> bytes_;
  int64_t at_ = 0;
  int64_t fields_ = 0;       // the vtable
  int64_t fields_size_ = 0;  // bytes of the vtable
  int64_t size_ = 0;         // bytes of the table
};

inline constexpr int64_t kMostText = 4096;

// Builds a buffer from its root: `link` points a field of a table, or an element of a vector of
// tables, to what was added later. Vectors of bytes are holes behind the text: the caller writes
// them, each with its length in the four bytes before.
class FlatWriter {
 public:
  explicit FlatWriter(const std::string& identifier);

  // A table with these fields: slot -> bytes (1, 4 or 8; offsets have 4). Its fields' places.
  std::map<int, size_t> table(const std::map<int, size_t>& fields);
  std::vector<size_t> tables(size_t count);  // a vector of offsets: the places of its elements
  size_t text(const std::string& text);
  size_t integers(const std::vector<int64_t>& values);

  void link(size_t place, size_t target);
  void link_to_last(size_t place) { link(place, last_); }  // the latest table or vector of offsets
  template <typename T>
  void set(size_t place, T value) {
    std::memcpy(text_.data() + place, &value, sizeof(T));
  }
  void root() { link(0, last_); }

  void hole(size_t place, int64_t bytes);  // a vector of `bytes` bytes
  // The text, and where in the file the bytes of each hole begin, in their order.
  std::string finish(std::vector<int64_t>& holes);

 private:
  void align(size_t alignment, size_t before = 0);
  void append(const void* data, size_t bytes);

  struct Hole {
    size_t place;
    int64_t bytes;
  };
  std::string text_;
  size_t last_ = 0;
  std::vector<Hole> holes_;
};

}  // namespace ofsdp::importer
