#include "kernels/core/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/base/posix_file.h"

namespace ofsdp::kernels {

void MemoryLedger::add(size_t bytes) {
  const size_t now = current_ += bytes;
  size_t peak = peak_;
  while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
  }
}

Region::Region(Region&& other) noexcept { *this = std::move(other); }

Region& Region::operator=(Region&& other) noexcept {
  if (this == &other) return *this;
  release();
  ledger_ = std::exchange(other.ledger_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  entered_ = std::exchange(other.entered_, 0);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

Region::~Region() { release(); }

void Region::release() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
    ledger_->remove(entered_);
    data_ = nullptr;
  }
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void Region::enter(MemoryLedger& ledger, size_t bytes) {
  ledger_ = &ledger;
  entered_ = bytes;
  ledger.add(bytes);
}

Result<Region> Region::map_common(MemoryLedger& ledger, size_t bytes, size_t part,
                                  const std::string& name) {
  return make(ledger, bytes, region_bytes(part), Sharing::kShared, name);
}

Result<Region> Region::attach(MemoryLedger& ledger, int fd, size_t bytes, size_t part,
                              const std::string& name) {
  Region region;
  const size_t whole = region_bytes(bytes);
  // MAP_POPULATE: the maker has touched these pages, and no step should pay for page faults.
  void* data = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) {
    return fault("cannot map {}: {} bytes ({})", name, whole, std::strerror(errno));
  }
  region.data_ = static_cast<std::byte*>(data);
  region.bytes_ = whole;
  region.enter(ledger, region_bytes(part));
  return region;
}

Result<Region> Region::map(MemoryLedger& ledger, size_t bytes, Sharing sharing,
                           const std::string& name) {
  return make(ledger, bytes, region_bytes(bytes), sharing, name);
}

Result<Region> Region::make(MemoryLedger& ledger, size_t bytes, size_t entered, Sharing sharing,
                            const std::string& name) {
  Region region;
  if (bytes == 0) return region;
  const size_t whole = region_bytes(bytes);
  auto no_memory = [&](const char* call) {
    return fault("no memory for {}: {} bytes ({}: {})", name, whole, call, std::strerror(errno));
  };
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (sharing == Sharing::kShared) {
    region.fd_ = memory_file(name);
    if (region.fd_ < 0) return no_memory("memfd_create");
    // Reserving the pages now makes a full memory this error instead of a later SIGBUS. A cgroup's
    // limit kills instead, so a run that needs more is refused before (process.h).
    const int error = posix_fallocate(region.fd_, 0, static_cast<off_t>(whole));
    if (error != 0) {
      errno = error;
      return no_memory("fallocate");
    }
    seal_size(region.fd_);
    flags = MAP_SHARED;
  }
  void* data = mmap(nullptr, whole, PROT_READ | PROT_WRITE, flags, region.fd_, 0);
  if (data == MAP_FAILED) return no_memory("mmap");
  region.data_ = static_cast<std::byte*>(data);
  region.bytes_ = whole;
  region.enter(ledger, entered);
  madvise(data, whole, MADV_HUGEPAGE);  // a hint: fewer TLB misses if the kernel agrees
  std::memset(data, 0, whole);
  return region;
}

}  // namespace ofsdp::kernels
