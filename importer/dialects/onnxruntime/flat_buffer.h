// FlatBuffers, read in place and bounds-checked, and written with the tables before their bytes.
//
// Has only what checkpoints need (ort_checkpoint.h): tables, vectors of tables, of int64 and of
// bytes, strings and numbers. The library (libflatbuffers) does not replace it. Its writer holds a
// whole buffer in the memory of one process, while ranks write their own elements in place. Its
// verifier says yes or no, while our messages name the damaged byte; the code to verify each table
// by hand is as long as this reader.
//
// A FlatTable is a view. Every offset is checked when it is followed, so no byte of a hostile file
// leads outside of it. Absent fields have their default. Offsets are those of the file.
// Follows https://flatbuffers.dev/internals.
//
// The bytes must outlive the tables. Threads: any. Errors: kInput with byte, expected and found,
// without the file's name.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::importer {

// The number of a table's field; schemas name them by an enum for each table.
struct FlatSlot {
  template <typename E>
  requires std::is_enum_v<E> FlatSlot(E slot)
      : index(static_cast<int>(slot)) {}  // NOLINT: implicit
  auto operator<=>(const FlatSlot&) const = default;
  int index;
};

struct FlatBytes {  // of a vector
  int64_t offset = 0;
  int64_t count = 0;
};

class FlatTable {
 public:
  static Result<FlatTable> root(std::span<const std::byte> bytes, const std::string& identifier);

  template <typename T>
  Result<T> number(FlatSlot slot, T otherwise) const {
    OFSDP_ASSIGN_OR_RETURN(const int64_t at, place(slot, sizeof(T)));
    return at == 0 ? otherwise : load<T>(at);
  }
  Result<std::string> text(FlatSlot slot) const;  // "" when absent; at most kMostText bytes
  Result<std::optional<FlatTable>> table(FlatSlot slot) const;
  Result<std::vector<FlatTable>> tables(FlatSlot slot) const;
  Result<std::vector<int64_t>> integers(FlatSlot slot) const;
  Result<std::optional<FlatBytes>> bytes(FlatSlot slot) const;

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
  Result<int64_t> place(FlatSlot slot, size_t bytes) const;  // 0: absent
  Result<int64_t> target(FlatSlot slot) const;               // of an offset; 0: absent
  Result<FlatBytes> vector(int64_t at, int64_t element) const;

  std::span<const std::byte> bytes_;
  int64_t at_ = 0;
  int64_t fields_ = 0;       // the vtable
  int64_t fields_size_ = 0;  // bytes of the vtable
  int64_t size_ = 0;         // bytes of the table
};

inline constexpr int64_t kMostText = 4096;

// Builds a buffer from its root. `link` points a field of a table, or an element of a vector of
// tables, to a later addition. Vectors of bytes are holes that follow the text: the caller writes
// them, each with its length in the four bytes before.
class FlatWriter {
 public:
  explicit FlatWriter(const std::string& identifier);

  // Adds a table with these fields: slot -> bytes (1, 4 or 8; offsets have 4). Returns their
  // places.
  std::map<FlatSlot, size_t> table(const std::map<FlatSlot, size_t>& fields);
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
  // Returns the text; `holes` gets the offset in the file of each hole, in their order.
  std::string finish(std::vector<int64_t>& holes);

 private:
  void align(size_t alignment, size_t before = 0);
  void append(const void* data, size_t bytes);
  size_t add_length(size_t count);  // of a vector; its place

  struct Hole {
    size_t place;
    int64_t bytes;
  };
  std::string text_;
  size_t last_ = 0;
  std::vector<Hole> holes_;
};

}  // namespace ofsdp::importer
