// Buffers that the detector watches, each between walls that nobody may touch; they live until the
// next row of the table. Owns its memory. Threads: one. Errors: buffers larger than the arena end
// the program.
#pragma once

#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/tensor.h"
#include "tests/races/detector.h"

namespace ofsdp::races {

using kernels::DType;

class DeviceMemory {
 public:
  DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  Region* region() { return &region_; }
  void clear();  // the buffers end
  // Zeros, at a multiple of 256, with a wall after the last byte.
  void* zeros(size_t bytes);

 private:
  static constexpr size_t kBytes = size_t{16} << 20, kWall = 64;
  void wall(size_t at, Stamp stamp);

  unsigned char* base_;
  Region region_;
  size_t used_ = kWall;
  std::vector<size_t> walls_;
};

// Makes and fills the buffers for a row of the table, with the same numbers in each run.
class Buffers {
 public:
  explicit Buffers(DeviceMemory* memory) : memory_(memory) {}

  void* zeros(size_t bytes) const { return memory_->zeros(bytes); }
  template <typename T>
  T* blank(int64_t n) const {
    return static_cast<T*>(zeros(static_cast<size_t>(n) * sizeof(T)));
  }
  template <typename T>
  T* copy(const std::vector<std::type_identity_t<T>>& values) const {
    T* const to = blank<T>(static_cast<int64_t>(values.size()));
    std::copy(values.begin(), values.end(), to);
    return to;
  }
  // Numbers around 0 in a float type.
  void* floats(DType dtype, int64_t n);
  float* floats(int64_t n) { return static_cast<float*>(floats(DType::kFloat32, n)); }
  float* positive(int64_t n);
  double* doubles(int64_t n);
  // 0 .. most - 1
  template <typename T = int64_t>
  T* whole(int64_t n, int64_t most) {
    T* const to = blank<T>(n);
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(draw_() % static_cast<uint64_t>(most));
    return to;
  }

 private:
  DeviceMemory* memory_;
  std::mt19937 draw_{7};
};

}  // namespace ofsdp::races
