// The one exported function, and what the table says about the library and its devices.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "kernels/base/hash.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/device/device_state.h"
#include "kernels/cuda/device/libraries.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kLeastDriver = 12040;  // CUDA 12.4

void put(char* text, size_t bytes, const std::string& value) {
  if (bytes > 0) std::snprintf(text, bytes, "%s", value.c_str());
}

std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

// The driver makes GPUs known; a runtime newer than the driver's major version cannot run.
int32_t probe(char* text, size_t bytes) {
  int driver = 0, runtime = 0, devices = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) {
    put(text, bytes, "no NVIDIA driver");
    return 0;
  }
  if (driver < kLeastDriver || driver / 1000 < runtime / 1000) {
    put(text, bytes,
        "the NVIDIA driver supports CUDA " + version(driver) + ", expected at least " +
            version(std::max(kLeastDriver, runtime / 1000 * 1000)));
    return 0;
  }
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    put(text, bytes, error == cudaSuccess ? "no GPU" : cudaGetErrorString(error));
    return 0;
  }
  return devices;
}

void missing(char* text, size_t bytes) { put(text, bytes, missing_libraries()); }

ofsdp_device* open(int32_t ordinal, char* text, size_t bytes) {
  auto device = std::make_unique<ofsdp_device>();
  device->ordinal = ordinal;
  cudaDeviceProp properties{};
  cudaError_t error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, ordinal);
  if (error != cudaSuccess) {
    put(text, bytes,
        std::string("GPU ") + std::to_string(ordinal) + ": " + cudaGetErrorString(error));
    return nullptr;
  }
  if (properties.major < 8) {
    put(text, bytes,
        std::string(properties.name) +
            ": expected compute capability 8.0 or newer, "
            "found " +
            std::to_string(properties.major) + "." + std::to_string(properties.minor));
    return nullptr;
  }
  device->name = properties.name;
  device->multiprocessors = properties.multiProcessorCount;
  device->capability = 10 * properties.major + properties.minor;
  device->bytes = properties.totalGlobalMem;
  device->identity =
      Fnv1a().add(std::string_view(properties.uuid.bytes, sizeof(properties.uuid.bytes))).value();
  return device.release();
}

void close(ofsdp_device* device) { delete device; }

void describe(ofsdp_device* device, char* text, size_t bytes) {
  size_t available = 0, total = 0;
  cudaMemGetInfo(&available, &total);
  put(text, bytes,
      device->name + ", " + std::to_string(total) + " bytes, " +
          std::to_string(device->multiprocessors) + " multiprocessors");
}

const char* error_text(ofsdp_device* device) { return device->error.c_str(); }

int32_t allow(ofsdp_device* device, uint32_t what) {
  device->tf32 = (what & OFSDP_MAY_ROUND_TO_TF32) != 0;
  device->may_vary = (what & OFSDP_MAY_VARY) != 0;
  return 0;
}

ofsdp_device_table make_table() {
  ofsdp_device_table table{};
  table.version = OFSDP_DEVICE_VERSION;
  table.size = sizeof(table);
  table.probe = probe;
  table.missing = missing;
  table.open = open;
  table.close = close;
  table.describe = describe;
  table.error = error_text;
  table.allow = allow;
  add_memory(table);
  add_order(table);
  add_operators(table);
  add_arithmetic(table);
  add_groups(table);
  add_exact(table);
  add_mark(table);
  return table;
}

}  // namespace

void use_device(int ordinal) { cudaSetDevice(ordinal); }

int32_t failed(ofsdp_device* device, cudaError_t error, const char* what) {
  if (error == cudaSuccess) return 0;
  cudaGetLastError();  // not to be found by the next call
  device->error = std::string(what) + ": " + cudaGetErrorString(error);
  return static_cast<int32_t>(error);
}

}  // namespace ofsdp::kernels::cuda

extern "C" __attribute__((visibility("default"))) const ofsdp_device_table* ofsdp_device_table_get(
    uint32_t version) {
  static const ofsdp_device_table table = ofsdp::kernels::cuda::make_table();
  return version == OFSDP_DEVICE_VERSION ? &table : nullptr;
}
