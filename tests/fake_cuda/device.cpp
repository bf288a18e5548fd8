// The device itself: properties, launches of kernels and other work.
#include <cstring>

#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

constexpr int kVersion = 13000;
constexpr size_t kMaxParameterBytes = 4096, kMaxShared = 48 << 10;
constexpr unsigned kMaxThreads = 1024;

bool within(const dim3& d, unsigned x, unsigned y, unsigned z) {
  return d.x >= 1 && d.y >= 1 && d.z >= 1 && d.x <= x && d.y <= y && d.z <= z;
}

std::string text_of(const dim3& d) { return text(d.x, " x ", d.y, " x ", d.z); }

// The rule that a launch breaks, and the operand; "" if it breaks none.
std::pair<std::string, std::string> broken_limit(const Launch& launch) {
  const dim3 &grid = launch.config.gridDim, &block = launch.config.blockDim;
  if (!within(grid, 0x7fffffff, 0xffff, 0xffff)) {
    return {"a grid has 1 to 2147483647 x 65535 x 65535 blocks", text_of(grid)};
  }
  if (!within(block, kMaxThreads, kMaxThreads, 64)) {
    return {"a block has 1 to 1024 x 1024 x 64 threads", text_of(block)};
  }
  const size_t threads = size_t{block.x} * block.y * block.z;
  const auto most = static_cast<size_t>(launch.most_threads);
  if (threads > most) {
    return {"a block has at most the threads of its kernel's __launch_bounds__",
            text(threads, " threads, bounds ", most)};
  }
  if (launch.config.dynamicSmemBytes > kMaxShared) {
    return {"a launch asks for at most 48 KiB of shared memory",
            text(launch.config.dynamicSmemBytes, " bytes")};
  }
  size_t bytes = 0;
  for (const LaunchParameter& p : launch.parameters) bytes += (p.bytes + 7) / 8 * 8;
  if (bytes > kMaxParameterBytes) {
    return {"a kernel has at most 4096 bytes of parameters", text(bytes, " bytes")};
  }
  return {};
}

// A pointer must be null or point into a live allocation, at most to the end. In a structure, a
// word is taken for a pointer if it is an address in this runtime's memory.
bool points_well(const std::string& call, const LaunchParameter& parameter, size_t number) {
  bool all = true;
  for (size_t at = 0; at + sizeof(void*) <= parameter.bytes; at += sizeof(void*)) {
    const void* data = nullptr;
    std::memcpy(&data, static_cast<const char*>(parameter.value) + at, sizeof(data));
    const Allocation* a = allocation_at(data);
    if (data == nullptr || (a == nullptr && !parameter.points)) continue;
    const char* rule = nullptr;
    if (a == nullptr) {
      rule = "an operand is in an allocation";
    } else if (!a->lives) {
      rule = "an operand's allocation lives";
    } else if (reinterpret_cast<uintptr_t>(data) > a->data + a->bytes) {
      rule = "an operand is in an allocation";
    }
    if (rule == nullptr) continue;
    all = false;
    say_broken(rule, call, text("parameter ", number, " at ", described(data)));
  }
  return all;
}

}  // namespace

cudaError_t launch(const Launch& launch, std::function<void()> work) {
  const Call call("cudaLaunchKernel");
  const std::string name = text("kernel ", launch.kernel);
  if (const auto [rule, operand] = broken_limit(launch); !rule.empty()) {
    say_broken(rule, name, operand);
    return call.gives(cudaErrorInvalidConfiguration);
  }
  bool all = true;
  for (size_t i = 0; i < launch.parameters.size(); ++i) {
    all = points_well(name, launch.parameters[i], i) && all;
  }
  if (!all) return call.gives(cudaErrorInvalidValue);
  return put(call, launch.config.stream, name, std::move(work));
}

cudaError_t enqueue(const std::string& name, cudaStream_t stream,
                    const std::vector<Operand>& operands, std::function<void()> work) {
  const Call call(name.c_str());
  bool all = true;
  for (const Operand& o : operands) all = holds(call, o.name, o.data, o.bytes) && all;
  if (!all) return call.gives(cudaErrorInvalidValue);
  return put(call, stream, name, std::move(work));
}

}  // namespace fake_cuda

using namespace fake_cuda;

extern "C" {

cudaError_t cudaGetLastError() {
  const Call call("cudaGetLastError");
  return std::exchange(runtime().last, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    default:
      return "an error";
  }
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  const Call call("cudaSetDevice");
  return device == 0 ? cudaSuccess : call.gives(cudaErrorInvalidValue);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "a device that checks rules");
  std::strcpy(properties->uuid.bytes, "checks rules");
  properties->totalGlobalMem = size_t{64} << 30;
  properties->major = 9;
  properties->multiProcessorCount = 132;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Call call("cudaDeviceSynchronize");
  if (unsafe(call, "all streams")) return call.gives(cudaErrorStreamCaptureUnsupported);
  return run_all(call) ? cudaSuccess : call.gives(cudaErrorLaunchFailure);
}

}  // extern "C"
