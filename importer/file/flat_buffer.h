// FlatBuffers: a bounds-checked reader in place, and a writer that leaves room for large vectors,
// which ranks fill in the file.
//
// Has only the parts that ONNX Runtime's checkpoints and adapter files need (ort_artifacts.h,
// tensor_file.h): tables, vectors (of tables, int64, bytes), strings and numbers. The library
// (libflatbuffers) cannot replace it: the library's writer holds a whole buffer in one process's
// memory, while ranks write their own elements in place. The verifier only returns yes or no, while
// our messages name the damaged byte; verification code for each table would be as long as this
// reader.
//
// A FlatTable is a view. It checks every offset before following it, so a hostile file leads
// nowhere outside the buffer. Absent fields have their default. Offsets are relative to the file.
// Follows https://flatbuffers.dev/internals.
//
// The bytes must outlive the tables. Errors: kInput with byte, expected and found, without the
// file's name.
#pragma once

#include <algorithm>
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

// A field's number in a table; each schema has an enum for each table.
struct FlatSlot {
  template <typename E>
  requires std::is_enum_v<E> FlatSlot(E slot)
      : index(static_cast<int>(slot)) {}  // NOLINT: implicit
  auto operator<=>(const FlatSlot&) const = default;
  int index;
};

inline constexpr int64_t kMaxText = 4096;

struct FlatBytes {     // of a vector
  int64_t offset = 0;  // of the first element in the file
  int64_t count = 0;   // elements
};

// FlatBuffers' own verifier takes at most this many bytes; writers of files keep to it.
inline constexpr int64_t kMaxFlatBytes = (int64_t{1} << 31) - 1;

class FlatTable {
 public:
  static constexpr int64_t kHeader = 8;  // root offset and identifier
  static Result<FlatTable> root(std::span<const std::byte> bytes, const std::string& identifier) {
    const auto size = static_cast<int64_t>(bytes.size());
    if (size < kHeader) return input_error("expected at least {} bytes, found {}", kHeader, size);
    OFSDP_REJECT_IF(std::memcmp(bytes.data() + 4, identifier.data(), 4) != 0,
                    "expected the identifier {} at byte 4, found another", identifier);
    uint32_t offset = 0;
    std::memcpy(&offset, bytes.data(), sizeof(offset));
    return at(bytes, offset);
  }

  template <typename T>
  Result<T> number(FlatSlot slot, T otherwise) const {
    OFSDP_ASSIGN_OR_RETURN(const int64_t at, place(slot, sizeof(T)));
    return at == 0 ? otherwise : load<T>(at);
  }
  // Returns "" if absent. Takes at most kMaxText bytes.
  Result<std::string> text(FlatSlot slot) const {
    OFSDP_ASSIGN_OR_RETURN(const int64_t at, target(slot));
    if (at == 0) return std::string();
    OFSDP_ASSIGN_OR_RETURN(const FlatBytes found, vector(at, 1));
    OFSDP_REJECT_IF(found.count > kMaxText,
                    "expected texts of at most {} bytes, found {} at byte {}", kMaxText,
                    found.count, at);
    return std::string(reinterpret_cast<const char*>(bytes_.data() + found.offset),
                       static_cast<size_t>(found.count));
  }

  Result<std::optional<FlatTable>> table(FlatSlot slot) const {
    OFSDP_ASSIGN_OR_RETURN(const int64_t place, target(slot));
    if (place == 0) return std::optional<FlatTable>();
    OFSDP_ASSIGN_OR_RETURN(FlatTable found, at(bytes_, place));
    return std::optional<FlatTable>(found);
  }

  Result<std::vector<FlatTable>> tables(FlatSlot slot) const {
    std::vector<FlatTable> list;
    OFSDP_ASSIGN_OR_RETURN(const int64_t place, target(slot));
    if (place == 0) return list;
    OFSDP_ASSIGN_OR_RETURN(const FlatBytes found, vector(place, 4));
    for (int64_t i = 0; i < found.count; ++i) {
      const int64_t from = found.offset + 4 * i;
      OFSDP_ASSIGN_OR_RETURN(const FlatTable table, at(bytes_, from + load<uint32_t>(from)));
      list.push_back(table);
    }
    return list;
  }

  Result<std::vector<int64_t>> integers(FlatSlot slot) const {
    std::vector<int64_t> list;
    OFSDP_ASSIGN_OR_RETURN(const int64_t place, target(slot));
    if (place == 0) return list;
    OFSDP_ASSIGN_OR_RETURN(const FlatBytes found, vector(place, 8));
    for (int64_t i = 0; i < found.count; ++i) list.push_back(load<int64_t>(found.offset + 8 * i));
    return list;
  }

  Result<std::optional<FlatBytes>> bytes(FlatSlot slot) const {
    OFSDP_ASSIGN_OR_RETURN(const int64_t place, target(slot));
    if (place == 0) return std::optional<FlatBytes>();
    OFSDP_ASSIGN_OR_RETURN(const FlatBytes found, vector(place, 1));
    return std::optional<FlatBytes>(found);
  }

 private:
  FlatTable(std::span<const std::byte> bytes, int64_t at) : bytes_(bytes), at_(at) {}
  static Result<FlatTable> at(std::span<const std::byte> bytes, int64_t at) {
    FlatTable table(bytes, at);
    OFSDP_REJECT_IF(at < kHeader || at + 4 > table.size(), "is damaged: a table at byte {} of {}",
                    at, table.size());
    table.fields_ = at - table.load<int32_t>(at);
    OFSDP_REJECT_IF(table.fields_ < 4 || table.fields_ + 4 > table.size(),
                    "is damaged: the fields of the table at byte {} are at byte {} of {}", at,
                    table.fields_, table.size());
    table.fields_size_ = table.load<uint16_t>(table.fields_);
    table.size_ = table.load<uint16_t>(table.fields_ + 2);
    OFSDP_REJECT_IF(table.fields_size_ < 4 || table.fields_ + table.fields_size_ > table.size() ||
                        table.size_ < 4 || at + table.size_ > table.size(),
                    "is damaged: the table at byte {} has {} bytes and {} of fields in {}", at,
                    table.size_, table.fields_size_, table.size());
    return table;
  }

  template <typename T>
  T load(int64_t at) const {
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof(T));
    return value;
  }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  // Returns 0 if absent.
  Result<int64_t> place(FlatSlot slot, size_t bytes) const {
    const int64_t entry = 4 + 2 * slot.index;
    if (entry + 2 > fields_size_) return 0;
    const int64_t offset = load<uint16_t>(fields_ + entry);
    if (offset == 0) return 0;
    OFSDP_REJECT_IF(offset < 4 || offset + static_cast<int64_t>(bytes) > size_,
                    "is damaged: field {} of the table at byte {} is at byte {} of {}", slot.index,
                    at_, offset, size_);
    return at_ + offset;
  }

  // Returns where an offset leads; 0: absent.
  Result<int64_t> target(FlatSlot slot) const {
    OFSDP_ASSIGN_OR_RETURN(const int64_t from, place(slot, 4));
    return from == 0 ? 0 : from + load<uint32_t>(from);
  }

  Result<FlatBytes> vector(int64_t at, int64_t element) const {
    OFSDP_REJECT_IF(at + 4 > size(), "is damaged or cut short: a list at byte {} of {}", at,
                    size());
    const int64_t count = load<uint32_t>(at);
    OFSDP_REJECT_IF(at + 4 + count * element > size(),
                    "is damaged or cut short: a list of {} bytes at byte {} of {}", count * element,
                    at, size());
    return FlatBytes{at + 4, count};
  }

  std::span<const std::byte> bytes_;
  int64_t at_ = 0;
  int64_t fields_ = 0;       // the vtable
  int64_t fields_size_ = 0;  // vtable bytes
  int64_t size_ = 0;         // table bytes
};

// Builds a buffer from its first table on: tables, offsets, numbers and strings are the head, which
// `finish` returns; vectors of bytes are holes in the file after it. The caller writes each hole,
// with its length as uint32 in the four bytes before.
//
// `table`, `tables`, `text` and `integers` append to the head and return positions in it. A field
// or element that refers to another part has four bytes, which `link` sets once that part is there.
class FlatWriter {
 public:
  explicit FlatWriter(const std::string& identifier) : text_(4, '\0') { text_ += identifier; }

  // Adds a table with these fields: slot -> bytes (1, 4 or 8; offsets have 4). Returns their
  // positions.
  std::map<FlatSlot, size_t> table(const std::map<FlatSlot, size_t>& fields) {
    const int slots = fields.empty() ? 0 : fields.rbegin()->first.index + 1;
    std::vector<uint16_t> entries(static_cast<size_t>(slots) + 2, 0);
    entries[0] = static_cast<uint16_t>(2 * entries.size());
    size_t size = 8;  // distance to the fields, and padding before the first
    for (const size_t bytes : {8, 4, 1}) {
      for (const auto& [slot, field] : fields) {
        if (field != bytes) continue;
        entries[static_cast<size_t>(slot.index) + 2] = static_cast<uint16_t>(size);
        size += bytes;
      }
    }
    size = static_cast<size_t>(aligned(static_cast<int64_t>(size), 4));
    entries[1] = static_cast<uint16_t>(size);
    align(8, 2 * entries.size());
    const size_t start = text_.size();
    append(entries.data(), 2 * entries.size());
    last_ = text_.size();
    text_.resize(last_ + size, '\0');
    set(last_, static_cast<int32_t>(last_ - start));
    std::map<FlatSlot, size_t> places;
    for (const auto& [slot, bytes] : fields) {
      places.emplace(slot, last_ + entries[static_cast<size_t>(slot.index) + 2]);
    }
    return places;
  }

  // Adds a vector of offsets and returns the elements' positions.
  std::vector<size_t> tables(size_t count) {
    align(4);
    last_ = add_length(count);
    std::vector<size_t> places;
    for (size_t i = 0; i < count; ++i) places.push_back(text_.size() + 4 * i);
    text_.resize(text_.size() + 4 * count, '\0');
    return places;
  }

  size_t text(const std::string& text) {  // a string
    align(4);
    const size_t at = add_length(text.size());
    append(text.c_str(), text.size() + 1);  // strings end with a zero that is not counted
    return at;
  }

  size_t integers(const std::vector<int64_t>& values) {
    align(8, 4);
    const size_t at = add_length(values.size());
    append(values.data(), 8 * values.size());
    return at;
  }

  void link(size_t place, size_t target) { set(place, static_cast<uint32_t>(target - place)); }

  void link_to_last(size_t place) { link(place, last_); }  // latest table or offset vector
  template <typename T>
  void set(size_t place, T value) {
    std::memcpy(text_.data() + place, &value, sizeof(T));
  }
  void root() { link(0, last_); }  // call it after `table` for the root

  // Plans a hole of `bytes` bytes; the field at `place` refers to it.
  void hole(size_t place, int64_t bytes) { holes_.push_back({place, bytes}); }

  // Returns the head; `holes` gets each hole's offset in the file, in the order of the calls.
  std::string finish(std::vector<int64_t>& holes) {
    constexpr int64_t kAlignment = 16;
    auto at = static_cast<int64_t>(text_.size());
    holes.clear();
    for (const Hole& hole : holes_) {
      const int64_t data = aligned(at + 4, kAlignment);
      link(hole.place, static_cast<size_t>(data - 4));
      holes.push_back(data);
      at = data + hole.bytes;
    }
    return text_;
  }

 private:
  static int64_t aligned(int64_t at, int64_t alignment) {
    return (at + alignment - 1) / alignment * alignment;
  }

  // Aligns the byte that follows after `before` more bytes.
  void align(size_t alignment, size_t before = 0) {
    while ((text_.size() + before) % alignment != 0) text_ += '\0';
  }

  void append(const void* data, size_t bytes) {
    text_.append(static_cast<const char*>(data), bytes);
  }

  // Adds a vector's length and returns the position.
  size_t add_length(size_t count) {
    const size_t at = text_.size();
    const auto length = static_cast<uint32_t>(count);
    append(&length, sizeof(length));
    return at;
  }

  struct Hole {
    size_t place;
    int64_t bytes;
  };
  std::string text_;
  size_t last_ = 0;
  std::vector<Hole> holes_;
};

}  // namespace ofsdp::importer
