// Bytes between two pages that nobody may touch: what is read or written past their end, or far
// before their begin, ends the process at once; what is written into the rest of the own pages
// shows in a pattern. catch_guard_faults prints what was touched before the process ends.
//
// Ownership: owns its pages. Threads: one, and the kernel's while it runs. Errors: none; a machine
// without memory aborts.
#pragma once

#include <cstddef>
#include <string>

namespace ofsdp::plugins {

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
  bool surrounded() const;  // is the pattern around the bytes whole?
  // Whether the address is in the guard pages or in the own ones.
  enum class Place { kElsewhere, kBefore, kInside, kBehind };
  Place place_of(const void* address) const;

 private:
  std::string name_;
  size_t bytes_;
  std::byte* map_;
  size_t mapped_;
  std::byte* data_;
};

// From now on a fault writes one line that names the buffer to `file` and ends with status 3.
void catch_guard_faults(int file);

}  // namespace ofsdp::plugins
