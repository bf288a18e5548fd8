// An open, nonempty file, mapped for one walk. Weights are read by pread later.
//
// If a file is cut short under a mapping (a copy over it, a network file system), SIGBUS follows.
// While a mapping lives, a handler replaces the lost bytes by zeros, and `was_cut` returns true.
//
// The mapping outlives the descriptor. The last mapping must end first. Threads: one, because a
// signal handler belongs to the process. Errors: kInput naming the file.
#pragma once

#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

class FileMapping {
 public:
  static Result<FileMapping> make(const OpenFile& file) {
    const auto bytes = static_cast<size_t>(file.bytes);
    void* data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
    OFSDP_REJECT_IF(data == MAP_FAILED, "{}: cannot be mapped: {}", file.path,
                    std::strerror(errno));
    return FileMapping({static_cast<const std::byte*>(data), bytes});
  }

  FileMapping(FileMapping&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), guarded_(other.guarded_), before_(other.before_) {}
  FileMapping& operator=(FileMapping&&) = delete;
  ~FileMapping() {
    if (bytes_.empty()) return;
    sigaction(SIGBUS, &before_, nullptr);
    guarded = guarded_;
    munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  bool was_cut() const { return cut; }

 private:
  explicit FileMapping(std::span<const std::byte> bytes) : bytes_(bytes), guarded_(guarded) {
    guarded = bytes;
    cut = false;
    struct sigaction action {};
    action.sa_sigaction = fill_in;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, &before_);
  }

  // Maps zeros from the faulting page to the mapping's end.
  static void fill_in(int number, siginfo_t* info, void*) {
    constexpr uintptr_t kPage = 4096;
    const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr) / kPage * kPage;
    const auto begin = reinterpret_cast<uintptr_t>(guarded.data());
    const uintptr_t end = begin + guarded.size();
    cut = true;
    const bool ours = at >= begin && at < end;
    if (ours &&
        mmap(reinterpret_cast<void*>(at), end - at, PROT_READ,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED) {
      return;
    }
    signal(number, SIG_DFL);  // the instruction faults again
  }

  static inline std::span<const std::byte> guarded{};  // the latest mapping
  static inline std::atomic<bool> cut{false};

  std::span<const std::byte> bytes_;
  std::span<const std::byte> guarded_;  // the mapping before this one
  struct sigaction before_ {};
};

}  // namespace ofsdp::importer
