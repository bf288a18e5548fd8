// A nonempty file, mapped into memory while the parser walks through it once. Weights are not read
// from the mapping but later, by pread.
//
// If another program truncates the file meanwhile (a copy over it, a network file system), reading
// the lost pages raises SIGBUS. The handler of the latest mapping maps zeros in place of these
// pages, so that parsing goes on, and from then on `was_cut` returns true. Only the latest mapping
// is guarded, and making a mapping resets `was_cut`.
//
// The file's descriptor may be closed while the mapping lives. Mappings must be destroyed in
// reverse order, on one thread, because a signal handler belongs to the process.
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
  // Returns kInput naming the file if it cannot be mapped.
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

  // The handler. Maps zeros from the faulting page to the mapping's end. If the fault is elsewhere,
  // or if mapping fails (a page larger than 4096 bytes), restores the default action, which ends
  // the process.
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
