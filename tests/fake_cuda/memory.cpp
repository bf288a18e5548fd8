// Memory: a reserved range of addresses, each given once; pages after each allocation that nobody
// may touch; and memory of the device that only running work may touch.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

constexpr uintptr_t kPage = 4096;
constexpr size_t kRange = size_t{1} << 40, kAligned = 256;
constexpr size_t kTotal = size_t{64} << 30;  // the memory size that the device reports

struct sigaction before;

bool in_range(uintptr_t at) {
  const Runtime& r = runtime();
  return r.range != 0 && at >= r.range && at < r.range + kRange;
}

// The call under way does not return, so the lock it holds does not matter.
void touched(int number, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  if (!in_range(at)) {
    sigaction(number, &before, nullptr);
    if ((before.sa_flags & SA_SIGINFO) != 0) before.sa_sigaction(number, info, context);
    return;
  }
  Runtime& r = runtime();
  const bool host = r.running.empty();
  say_broken(host ? "the host does not touch memory of the device"
                  : "work stays in the allocations of its operands",
             host ? "the host" : r.running, described(info->si_addr));
  if (const char* file = std::getenv("COUNTING_DEVICE_REPORT"); file != nullptr && *file != 0) {
    std::ofstream report(file);
    for (const std::string& line : r.broken) report << "violation " << line << "\n";
  }
  _exit(70);
}

void reserve() {
  Runtime& r = runtime();
  if (r.range != 0) return;
  void* range =
      mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    std::fprintf(stderr, "fake_cuda: no range of addresses\n");
    std::abort();
  }
  r.range = r.next = reinterpret_cast<uintptr_t>(range);
  struct sigaction action {};
  action.sa_sigaction = touched;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &before);
}

uintptr_t up_to(uintptr_t value, uintptr_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The allocation ends as near to the closed page after it as the alignment allows.
cudaError_t allocate(const Call& call, void** data, size_t bytes, Place place) {
  if (call.refused()) return call.gives(*call.refused());
  if (unsafe(call, text(bytes, " bytes"))) return call.gives(cudaErrorStreamCaptureUnsupported);
  reserve();
  Runtime& r = runtime();
  Allocation made;
  made.bytes = bytes;
  made.place = place;
  made.call = call.name();
  made.mapped = r.next;
  made.mapped_bytes = up_to(up_to(bytes, kAligned), kPage);
  r.next += made.mapped_bytes + kPage;
  made.data = made.mapped + made.mapped_bytes - up_to(bytes, kAligned);
  const int may = place == Place::kDevice ? PROT_NONE : PROT_READ | PROT_WRITE;
  if (mprotect(reinterpret_cast<void*>(made.mapped), made.mapped_bytes, may) != 0) {
    return call.gives(cudaErrorMemoryAllocation);
  }
  madvise(reinterpret_cast<void*>(made.mapped), made.mapped_bytes, MADV_HUGEPAGE);  // fewer faults
  *data = reinterpret_cast<void*>(made.data);
  r.allocations[made.data] = made;
  return cudaSuccess;
}

// Waits for all work, as CUDA does.
cudaError_t release(const Call& call, void* data, Place place) {
  if (data == nullptr) return cudaSuccess;
  if (unsafe(call, described(data))) return call.gives(cudaErrorStreamCaptureUnsupported);
  Runtime& r = runtime();
  const auto it = r.allocations.find(reinterpret_cast<uintptr_t>(data));
  if (it == r.allocations.end() || !it->second.lives || it->second.place != place) {
    return call.breaks("only what was allocated, and lives, is freed", described(data),
                       cudaErrorInvalidValue);
  }
  run_all(call);
  it->second.lives = false;
  void* const pages = reinterpret_cast<void*>(it->second.mapped);
  mmap(pages, it->second.mapped_bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return cudaSuccess;
}

bool of_device(const void* data) {
  const Allocation* a = allocation_at(data);
  return a != nullptr && a->place == Place::kDevice;
}

// A kind that contradicts the addresses.
bool wrong_way(cudaMemcpyKind kind, const void* to, const void* from) {
  if (kind == cudaMemcpyDefault) return false;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return to_device != of_device(to) || from_device != of_device(from);
}

// Host memory that the runtime does not know.
bool pageable(const void* data) {
  return allocation_at(data) == nullptr && !in_range(reinterpret_cast<uintptr_t>(data));
}

bool may_copy(const Call& call, void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (!pageable(to) && !holds(call, "destination", to, bytes)) return false;
  if (!pageable(from) && !holds(call, "source", from, bytes)) return false;
  if (!wrong_way(kind, to, from)) return true;
  say_broken(
      "a copy's kind is that of its addresses", call.name(),
      text("kind ", static_cast<int>(kind), " to ", described(to), " from ", described(from)));
  return false;
}

}  // namespace

// The page after an allocation counts as part of it.
const Allocation* allocation_at(const void* data) {
  const auto& all = runtime().allocations;
  const auto at = reinterpret_cast<uintptr_t>(data);
  const auto it = all.upper_bound(at);
  if (it == all.begin()) return nullptr;
  const Allocation& found = std::prev(it)->second;
  return at < found.mapped + found.mapped_bytes + kPage ? &found : nullptr;
}

std::string described(const void* data) {
  char address[32];
  std::snprintf(address, sizeof(address), "%p", data);
  const Allocation* a = allocation_at(data);
  if (a == nullptr) return text(address, " in no allocation");
  const auto offset = reinterpret_cast<uintptr_t>(data) - a->data;
  return text(address, ", byte ", offset, " of ", a->bytes, " of ", a->call,
              a->lives ? "" : ", freed");
}

bool holds(const Call& call, const char* name, const void* data, size_t bytes) {
  if (bytes == 0) return true;
  const Allocation* a = allocation_at(data);
  const auto at = reinterpret_cast<uintptr_t>(data);
  if (a != nullptr && a->lives && at + bytes <= a->data + a->bytes) return true;
  const char* rule = a == nullptr ? "an operand is in an allocation"
                     : !a->lives  ? "an operand's allocation lives"
                                  : "an operand ends within its allocation";
  say_broken(rule, call.name(), text(name, ", ", bytes, " bytes at ", described(data)));
  return false;
}

void open_memory(bool open) {
  for (const auto& [data, a] : runtime().allocations) {
    if (!a.lives || a.place != Place::kDevice) continue;
    mprotect(reinterpret_cast<void*>(a.mapped), a.mapped_bytes,
             open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

}  // namespace fake_cuda

using namespace fake_cuda;

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  const Call call("cudaMalloc");
  return allocate(call, data, bytes, Place::kDevice);
}
cudaError_t cudaFree(void* data) {
  const Call call("cudaFree");
  return release(call, data, Place::kDevice);
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  const Call call("cudaHostAlloc");
  return allocate(call, data, bytes, Place::kPinned);
}
cudaError_t cudaFreeHost(void* data) {
  const Call call("cudaFreeHost");
  return release(call, data, Place::kPinned);
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  const Call call("cudaMemGetInfo");
  size_t used = 0;
  for (const auto& [data, a] : runtime().allocations) {
    used += a.lives && a.place == Place::kDevice ? a.bytes : 0;
  }
  *total = kTotal;
  *available = kTotal - used;
  return cudaSuccess;
}

// From pageable memory CUDA copies into an internal buffer before it returns. To pageable memory
// the copy is over on return.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  const Call call("cudaMemcpyAsync");
  CUstream_st* const stream = stream_of(call, handle);
  if (stream == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  if (!may_copy(call, to, from, bytes, kind)) return call.gives(cudaErrorInvalidValue);
  if (stream->capture != nullptr && (pageable(to) || pageable(from))) {
    invalidate(*stream->capture);
    return call.breaks("no pageable memory in a capture", described(pageable(to) ? to : from),
                       cudaErrorStreamCaptureUnsupported);
  }
  if (stream->capture != nullptr && bytes == 0) {
    return call.breaks("a node copies some bytes", described(to), cudaErrorInvalidValue);
  }
  std::shared_ptr<std::vector<char>> staged;
  if (pageable(from)) {
    const auto* first = static_cast<const char*>(from);
    staged = std::make_shared<std::vector<char>>(first, first + bytes);
  }
  const cudaError_t error = put(call, handle, call.name(), [=] {
    if (bytes > 0) std::memmove(to, staged != nullptr ? staged->data() : from, bytes);
  });
  if (error != cudaSuccess || !pageable(to)) return error;
  return run_until(call, [&, all = stream->put] { return stream->done >= all; })
             ? cudaSuccess
             : call.gives(cudaErrorLaunchFailure);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const Call call("cudaMemcpy");
  if (unsafe(call, described(to))) return call.gives(cudaErrorStreamCaptureImplicit);
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t handle) {
  const Call call("cudaMemsetAsync");
  CUstream_st* const stream = stream_of(call, handle);
  if (stream == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  if (!holds(call, "memory", data, bytes)) return call.gives(cudaErrorInvalidValue);
  if (stream->capture != nullptr && bytes == 0) {
    return call.breaks("a node sets some bytes", described(data), cudaErrorInvalidValue);
  }
  return put(call, handle, call.name(), [=] {
    if (bytes > 0) std::memset(data, value, bytes);
  });
}
// Asynchronous for device memory, on the legacy stream.
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  const Call call("cudaMemset");
  if (unsafe(call, described(data))) return call.gives(cudaErrorStreamCaptureImplicit);
  return cudaMemsetAsync(data, value, bytes, nullptr);
}

}  // extern "C"
