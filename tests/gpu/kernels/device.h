// For tests of kernels/cuda: tensors in device memory between guard bytes, filled from doubles and
// read back as doubles. `same_twice` runs a launcher twice (under the emulator with the threads in
// the other order) and expects the same bits. Owns its memory. Threads: one. Errors: a failed call
// of CUDA fails the test.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/tensor.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {

void take_turns_backwards(bool backwards);  // in the emulator; no effect on a GPU

inline constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

#define EXPECT_CUDA(call) EXPECT_EQ(cudaSuccess, (call))

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no CUDA device";
  }
  void TearDown() override { take_turns_backwards(false); }
};

class Tensor {
 public:
  // `shift`: elements between an address aligned to 256 and the data.
  Tensor(DType dtype, const std::vector<double>& values, int shift = 0)
      : desc_{dtype, {static_cast<int64_t>(values.size())}},
        offset_(kGuard + static_cast<size_t>(shift) * dtype_size(dtype)) {
    std::vector<std::byte> host(total(), kFill);
    from_doubles(values, desc_, host.data() + offset_);
    EXPECT_CUDA(cudaMalloc(&base_, total()));
    EXPECT_CUDA(cudaMemcpy(base_, host.data(), total(), cudaMemcpyHostToDevice));
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    bytes();  // checks the guards
    EXPECT_CUDA(cudaFree(base_));
  }
  static std::vector<double> blank(int64_t n) {
    return std::vector<double>(static_cast<size_t>(n), 7.0);
  }

  void* data() const { return static_cast<std::byte*>(base_) + offset_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data());
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> host(total());
    EXPECT_CUDA(cudaDeviceSynchronize());
    EXPECT_CUDA(cudaMemcpy(host.data(), base_, total(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < host.size(); ++i) {
      const bool inside = i >= offset_ && i < offset_ + desc_.bytes();
      if (inside || host[i] == kFill) continue;
      ADD_FAILURE() << "written outside, at byte " << static_cast<int64_t>(i - offset_);
      break;
    }
    return {host.begin() + static_cast<std::ptrdiff_t>(offset_),
            host.begin() + static_cast<std::ptrdiff_t>(offset_ + desc_.bytes())};
  }
  std::vector<double> values() const { return to_doubles(desc_, bytes().data()); }
  void assign(const std::vector<std::byte>& bytes) {
    EXPECT_CUDA(cudaMemcpy(data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr std::byte kFill{0xA5};
  size_t total() const { return offset_ + desc_.bytes() + kGuard; }

  TensorDesc desc_;
  size_t offset_;
  void* base_ = nullptr;
};

// A struct as a byte tensor.
template <typename T>
std::unique_ptr<Tensor> on_device(const T& value) {
  auto made = std::make_unique<Tensor>(DType::kUInt8, std::vector<double>(sizeof(T)));
  std::vector<std::byte> bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  made->assign(bytes);
  return made;
}

inline std::vector<float> floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

// Numbers that look random and are the same everywhere, in -scale .. scale.
inline std::vector<double> numbers(int64_t n, uint64_t seed, double scale = 2) {
  std::vector<double> made(static_cast<size_t>(n));
  for (double& v : made) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    v = scale * (static_cast<double>(seed >> 40) / static_cast<double>(1 << 23) - 1);
  }
  return made;
}

inline double rounding(DType dtype) {
  if (dtype == DType::kFloat16) return 2e-3;
  return dtype == DType::kBFloat16 ? 1.6e-2 : dtype == DType::kFloat64 ? 1e-12 : 3e-5;
}

inline void expect_close(const std::vector<double>& actual, const std::vector<double>& expected,
                         double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    const bool same =
        actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i]));
    const bool close = std::abs(actual[i] - expected[i]) <= tolerance * (1 + std::abs(expected[i]));
    ASSERT_TRUE(same || close) << what << " element " << i << " of " << actual.size() << ": found "
                               << actual[i] << ", expected " << expected[i];
  }
}

// Runs `launch` twice from the same contents of `tensors`; it must use no other memory.
inline void same_twice(const std::vector<Tensor*>& tensors,
                       const std::function<cudaError_t()>& launch) {
#ifdef __SANITIZE_ADDRESS__  // it looks at indices, which are the same in every run
  constexpr bool kTwice = false;
#else
  constexpr bool kTwice = true;
#endif
  if (!kTwice) {
    EXPECT_CUDA(launch());
    return;
  }
  std::vector<std::vector<std::byte>> before, first;
  for (Tensor* t : tensors) before.push_back(t->bytes());
  EXPECT_CUDA(launch());
  for (Tensor* t : tensors) first.push_back(t->bytes());
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i]->assign(before[i]);
  take_turns_backwards(true);
  EXPECT_CUDA(launch());
  take_turns_backwards(false);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(first[i] == tensors[i]->bytes()) << "tensor " << i << " of two runs";
  }
}

}  // namespace ofsdp::kernels::cuda
