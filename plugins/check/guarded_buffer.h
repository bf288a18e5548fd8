// Memory that shows if a plug-in's kernel reads or writes outside its tensors.
#pragma once

#include <cstddef>
#include <string>

namespace ofsdp::plugins {

// Bytes between two pages that nobody may touch: a read or write past their end, or far before
// their begin, ends the process at once; any other write to these pages shows in a pattern.
// catch_guard_faults prints the touched place before the process ends.
//
// Owns the pages. A machine without memory aborts.
class GuardedBuffer {
 public:
  GuardedBuffer(std::string name, size_t bytes);
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  const std::string& name() const { return name_; }
  void fill(int byte);
  void protect(bool read_only);
  bool surrounded() const;  // whether the pattern around the bytes is intact
  // Returns whether the address is in the guard pages or in the buffer's own.
  enum class Place { kElsewhere, kBefore, kInside, kBehind };
  Place place_of(const void* address) const;

 private:
  std::string name_;
  size_t bytes_;
  std::byte* map_;
  size_t mapped_;
  std::byte* data_;
};

// From this call on a crash writes a line that names the touched buffer to `file`, an open
// descriptor, and ends the process with status 3.
void catch_guard_faults(int file);

}  // namespace ofsdp::plugins
