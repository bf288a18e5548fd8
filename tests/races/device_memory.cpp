#include "tests/races/device_memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace ofsdp::races {

DeviceMemory::DeviceMemory()
    : base_(static_cast<unsigned char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
      region_(base_, kBytes) {
  clear();
}

DeviceMemory::~DeviceMemory() { munmap(base_, kBytes); }

void DeviceMemory::wall(size_t at, Stamp stamp) {
  region_.visit(base_ + at, kWall, [&](Cell& cell) { cell.write = stamp; });
}

void DeviceMemory::clear() {
  for (const size_t at : walls_) wall(at, {});
  walls_ = {0};
  region_.forget();
  wall(0, Stamp::of(kWallStretch, 0, 0, false));
  used_ = kWall;
}

void* DeviceMemory::zeros(size_t bytes) {
  constexpr size_t kAlign = 256;
  const size_t at = (used_ + kAlign - 1) / kAlign * kAlign;
  if (at + bytes + kWall > kBytes) {
    std::fprintf(stderr, "races: the buffers of a row need more than %zu bytes\n", kBytes);
    std::exit(1);
  }
  used_ = at + bytes + kWall;
  walls_.push_back(at + bytes);
  wall(at + bytes, Stamp::of(kWallStretch, 0, 0, false));
  std::memset(base_ + at, 0, bytes);
  return base_ + at;
}

void* Buffers::floats(DType dtype, int64_t n) {
  std::vector<double> values(static_cast<size_t>(n));
  for (double& v : values) v = static_cast<double>(draw_()) / (1u << 31) - 1;
  void* const to = zeros(static_cast<size_t>(n) * kernels::dtype_size(dtype));
  kernels::from_doubles(values, {dtype, {n}}, static_cast<std::byte*>(to));
  return to;
}

float* Buffers::positive(int64_t n) {
  float* const to = floats(n);
  for (int64_t i = 0; i < n; ++i) to[i] = to[i] * to[i] + 0.1f;
  return to;
}

double* Buffers::doubles(int64_t n) { return static_cast<double*>(floats(DType::kFloat64, n)); }

}  // namespace ofsdp::races
