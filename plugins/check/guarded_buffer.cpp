#include "plugins/check/guarded_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <set>

#include "kernels/base/status.h"

namespace ofsdp::plugins {
namespace {

constexpr size_t kAlignment = 64;
constexpr int kPattern = 0xA5;

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

// [Note: state of a signal handler] A handler takes no argument from us, so live buffers are listed
// here; only check-plugin makes any, in a separate process.
std::set<const GuardedBuffer*>& living() {
  static std::set<const GuardedBuffer*> list;
  return list;
}
volatile int fault_file = 2;

const char* text_of(GuardedBuffer::Place place) {
  if (place == GuardedBuffer::Place::kBefore) return "touches memory before";
  return place == GuardedBuffer::Place::kBehind ? "touches memory behind" : "writes into";
}

void on_fault(int signal, siginfo_t* info, void*) {
  char line[300];
  int length = std::snprintf(line, sizeof(line), "! it crashed with signal %d\n", signal);
  for (const GuardedBuffer* buffer : living()) {
    const auto place = buffer->place_of(info->si_addr);
    if (place == GuardedBuffer::Place::kElsewhere) continue;
    length = std::snprintf(line, sizeof(line), "! it %s %s (%zu bytes)\n", text_of(place),
                           buffer->name().c_str(), buffer->size());
  }
  [[maybe_unused]] const ssize_t written = write(fault_file, line, static_cast<size_t>(length));
  _exit(3);
}

}  // namespace

GuardedBuffer::GuardedBuffer(std::string name, size_t bytes)
    : name_(std::move(name)), bytes_(bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t aligned = round_up(std::max(bytes, size_t{1}), kAlignment);
  mapped_ = round_up(aligned, page) + 2 * page;
  void* map = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  OFSDP_CHECK(map != MAP_FAILED, "no memory for {} bytes", mapped_);
  map_ = static_cast<std::byte*>(map);
  protect(false);
  std::memset(map_ + page, kPattern, mapped_ - 2 * page);
  data_ = map_ + mapped_ - page - aligned;
  living().insert(this);
}

GuardedBuffer::~GuardedBuffer() {
  living().erase(this);
  munmap(map_, mapped_);
}

void GuardedBuffer::fill(int byte) { std::memset(data_, byte, bytes_); }

void GuardedBuffer::protect(bool read_only) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const int rights = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  OFSDP_CHECK(mprotect(map_ + page, mapped_ - 2 * page, rights) == 0, "mprotect");
}

bool GuardedBuffer::surrounded() const {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const std::byte* const end = map_ + mapped_ - page;
  for (const std::byte* at = map_ + page; at < end; ++at) {
    const bool inside = at >= data_ && at < data_ + bytes_;
    if (!inside && *at != std::byte{kPattern}) return false;
  }
  return true;
}

GuardedBuffer::Place GuardedBuffer::place_of(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  if (at < map_ || at >= map_ + mapped_) return Place::kElsewhere;
  if (at < data_) return Place::kBefore;
  return at < data_ + bytes_ ? Place::kInside : Place::kBehind;
}

void catch_guard_faults(int file) {
  fault_file = file;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace ofsdp::plugins
