// Memory that holds tensors, and the ledger that counts it.
//
// A Region is page-aligned memory, mapped and touched at once so that no step pays for a page
// fault: private to this process, or a memfd that peers on this host may map. If processes share a
// Region, one makes it, the others attach it, and each counts a part. Every Region is counted in a
// MemoryLedger. Metrics call the ledger's peak peak_bytes; planning computes the same figure with
// `region_bytes`.
//
// A Region owns mapping and file descriptor. Any thread may use the ledger, but only the owner's
// thread a Region. Mapping returns kFault with the region's name and the requested bytes if the
// system has no memory left.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "kernels/base/status.h"

namespace ofsdp::kernels {

inline constexpr size_t kTensorAlignment = 64;  // bytes; a cache line, and an AVX-512 register
inline constexpr size_t kPageBytes = 4096;

constexpr size_t align_up(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Returns the bytes that a Region of `bytes` occupies: whole pages.
constexpr size_t region_bytes(size_t bytes) { return align_up(bytes, kPageBytes); }

class MemoryLedger {
 public:
  void add(size_t bytes);
  void remove(size_t bytes) { current_ -= bytes; }
  size_t current() const { return current_; }
  size_t peak() const { return peak_; }

 private:
  std::atomic<size_t> current_{0};
  std::atomic<size_t> peak_{0};
};

class Region {
 public:
  enum class Sharing { kPrivate, kShared };

  Region() = default;
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  ~Region();

  // Zero-filled; empty if bytes is 0. The ledger must outlive the Region.
  static Result<Region> map(MemoryLedger& ledger, size_t bytes, Sharing sharing,
                            const std::string& name);
  // Shared with other processes: the ledger counts `part` bytes.
  static Result<Region> map_common(MemoryLedger& ledger, size_t bytes, size_t part,
                                   const std::string& name);
  static Result<Region> attach(MemoryLedger& ledger, int fd, size_t bytes, size_t part,
                               const std::string& name);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }  // as mapped: whole pages
  int fd() const { return fd_; }           // a shared Region's memfd, else -1

 private:
  static Result<Region> make(MemoryLedger& ledger, size_t bytes, size_t entered, Sharing sharing,
                             const std::string& name);
  void release();
  void enter(MemoryLedger& ledger, size_t bytes);

  MemoryLedger* ledger_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t entered_ = 0;  // counted in the ledger
  int fd_ = -1;
};

}  // namespace ofsdp::kernels
