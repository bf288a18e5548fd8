#include "importer/dialects/onnxruntime/flat_buffer.h"

#include <algorithm>

namespace ofsdp::importer {
namespace {

constexpr int64_t kHeader = 8;  // the root's offset and the identifier
constexpr size_t kHoleAlignment = 16;

int64_t aligned(int64_t at, int64_t alignment) {
  return (at + alignment - 1) / alignment * alignment;
}

}  // namespace

Result<FlatTable> FlatTable::root(std::span<const std::byte> bytes, const std::string& identifier) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size < kHeader) return input_error("expected at least {} bytes, found {}", kHeader, size);
  if (std::memcmp(bytes.data() + 4, identifier.data(), 4) != 0) {
    return input_error("expected the identifier {} at byte 4, found another", identifier);
  }
  uint32_t offset = 0;
  std::memcpy(&offset, bytes.data(), sizeof(offset));
  return at(bytes, offset);
}

Result<FlatTable> FlatTable::at(std::span<const std::byte> bytes, int64_t at) {
  FlatTable table(bytes, at);
  if (at < kHeader || at + 4 > table.size()) {
    return input_error("is damaged: a table at byte {} of {}", at, table.size());
  }
  table.fields_ = at - table.load<int32_t>(at);
  if (table.fields_ < 4 || table.fields_ + 4 > table.size()) {
    return input_error("is damaged: the fields of the table at byte {} are at byte {} of {}", at,
                       table.fields_, table.size());
  }
  table.fields_size_ = table.load<uint16_t>(table.fields_);
  table.size_ = table.load<uint16_t>(table.fields_ + 2);
  if (table.fields_size_ < 4 || table.fields_ + table.fields_size_ > table.size() ||
      table.size_ < 4 || at + table.size_ > table.size()) {
    return input_error("is damaged: the table at byte {} has {} bytes and {} of fields in {}", at,
                       table.size_, table.fields_size_, table.size());
  }
  return table;
}

Result<int64_t> FlatTable::place(FlatSlot slot, size_t bytes) const {
  const int64_t entry = 4 + 2 * slot.index;
  if (entry + 2 > fields_size_) return 0;
  const int64_t offset = load<uint16_t>(fields_ + entry);
  if (offset == 0) return 0;
  if (offset < 4 || offset + static_cast<int64_t>(bytes) > size_) {
    return input_error("is damaged: field {} of the table at byte {} is at byte {} of {}",
                       slot.index, at_, offset, size_);
  }
  return at_ + offset;
}

Result<int64_t> FlatTable::target(FlatSlot slot) const {
  OFSDP_ASSIGN_OR_RETURN(const int64_t from, place(slot, 4));
  return from == 0 ? 0 : from + load<uint32_t>(from);
}

Result<FlatBytes> FlatTable::vector(int64_t at, int64_t element) const {
  if (at + 4 > size()) {
    return input_error("is damaged or cut short: a list at byte {} of {}", at, size());
  }
  const int64_t count = load<uint32_t>(at);
  if (at + 4 + count * element > size()) {
    return input_error("is damaged or cut short: a list of {} bytes at byte {} of {}",
                       count * element, at, size());
  }
  return FlatBytes{at + 4, count};
}

Result<std::string> FlatTable::text(FlatSlot slot) const {
  OFSDP_ASSIGN_OR_RETURN(const int64_t at, target(slot));
  if (at == 0) return std::string();
  OFSDP_ASSIGN_OR_RETURN(const FlatBytes found, vector(at, 1));
  if (found.count > kMostText) {
    return input_error("expected texts of at most {} bytes, found {} at byte {}", kMostText,
                       found.count, at);
  }
  return std::string(reinterpret_cast<const char*>(bytes_.data() + found.offset),
                     static_cast<size_t>(found.count));
}

Result<std::optional<FlatTable>> FlatTable::table(FlatSlot slot) const {
  OFSDP_ASSIGN_OR_RETURN(const int64_t place, target(slot));
  if (place == 0) return std::optional<FlatTable>();
  OFSDP_ASSIGN_OR_RETURN(FlatTable found, at(bytes_, place));
  return std::optional<FlatTable>(found);
}

Result<std::vector<FlatTable>> FlatTable::tables(FlatSlot slot) const {
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

Result<std::vector<int64_t>> FlatTable::integers(FlatSlot slot) const {
  std::vector<int64_t> list;
  OFSDP_ASSIGN_OR_RETURN(const int64_t place, target(slot));
  if (place == 0) return list;
  OFSDP_ASSIGN_OR_RETURN(const FlatBytes found, vector(place, 8));
  for (int64_t i = 0; i < found.count; ++i) list.push_back(load<int64_t>(found.offset + 8 * i));
  return list;
}

Result<std::optional<FlatBytes>> FlatTable::bytes(FlatSlot slot) const {
  OFSDP_ASSIGN_OR_RETURN(const int64_t place, target(slot));
  if (place == 0) return std::optional<FlatBytes>();
  OFSDP_ASSIGN_OR_RETURN(const FlatBytes found, vector(place, 1));
  return std::optional<FlatBytes>(found);
}

FlatWriter::FlatWriter(const std::string& identifier) : text_(4, '\0') { text_ += identifier; }

// Aligns the byte after `before` more bytes.
void FlatWriter::align(size_t alignment, size_t before) {
  while ((text_.size() + before) % alignment != 0) text_ += '\0';
}

void FlatWriter::append(const void* data, size_t bytes) {
  text_.append(static_cast<const char*>(data), bytes);
}

std::map<FlatSlot, size_t> FlatWriter::table(const std::map<FlatSlot, size_t>& fields) {
  const int slots = fields.empty() ? 0 : fields.rbegin()->first.index + 1;
  std::vector<uint16_t> entries(static_cast<size_t>(slots) + 2, 0);
  entries[0] = static_cast<uint16_t>(2 * entries.size());
  size_t size = 8;  // the distance of the fields, and what aligns the first
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

std::vector<size_t> FlatWriter::tables(size_t count) {
  align(4);
  last_ = add_length(count);
  std::vector<size_t> places;
  for (size_t i = 0; i < count; ++i) places.push_back(text_.size() + 4 * i);
  text_.resize(text_.size() + 4 * count, '\0');
  return places;
}

size_t FlatWriter::add_length(size_t count) {
  const size_t at = text_.size();
  const auto length = static_cast<uint32_t>(count);
  append(&length, sizeof(length));
  return at;
}

size_t FlatWriter::text(const std::string& text) {
  align(4);
  const size_t at = add_length(text.size());
  append(text.c_str(), text.size() + 1);  // strings end with a zero that is not counted
  return at;
}

size_t FlatWriter::integers(const std::vector<int64_t>& values) {
  align(8, 4);
  const size_t at = add_length(values.size());
  append(values.data(), 8 * values.size());
  return at;
}

void FlatWriter::link(size_t place, size_t target) {
  set(place, static_cast<uint32_t>(target - place));
}

void FlatWriter::hole(size_t place, int64_t bytes) { holes_.push_back({place, bytes}); }

std::string FlatWriter::finish(std::vector<int64_t>& holes) {
  constexpr auto kAlignment = static_cast<int64_t>(kHoleAlignment);
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

}  // namespace ofsdp::importer
