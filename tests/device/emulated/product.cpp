// In place of cuBLASLt: kernels/cuda/library/product.h by plain loops, in float32, rounded once. What
// it asks for as workspace it fills with garbage. It refuses addresses that are less aligned than
// product.cpp promises cuBLASLt, and a bias that is not at a multiple of 16 bytes.
#include "kernels/cuda/library/product.h"

#include <cstdint>
#include <cstring>

#include "kernels/core/tensor.h"

namespace ofsdp::cuda {
namespace {

constexpr size_t kWorkspace = 1000;

float load(const void* from, DType dtype, int64_t i) {
  if (dtype == DType::kFloat16) return half_to_float(static_cast<const uint16_t*>(from)[i]);
  if (dtype == DType::kBFloat16) return bfloat16_to_float(static_cast<const uint16_t*>(from)[i]);
  return static_cast<const float*>(from)[i];
}

void store(void* to, DType dtype, int64_t i, float value) {
  if (dtype == DType::kFloat16) {
    static_cast<uint16_t*>(to)[i] = float_to_half(value);
  } else if (dtype == DType::kBFloat16) {
    static_cast<uint16_t*>(to)[i] = float_to_bfloat16(value);
  } else {
    static_cast<float*>(to)[i] = value;
  }
}

bool is_aligned(const void* data, size_t to) { return reinterpret_cast<uintptr_t>(data) % to == 0; }

class Loops final : public MatrixProduct {
 public:
  explicit Loops(const ProductShape& shape) : s_(shape) {}
  size_t workspace_bytes() const override { return kWorkspace; }

  cudaError_t run(cudaStream_t, const void* a, const void* b, const void* bias, void* d,
                  void* workspace) override {
    std::memset(workspace, 0xFF, kWorkspace);
    if ((bias != nullptr) != s_.bias) return cudaErrorInvalidValue;
    if (!is_aligned(a, 32) || !is_aligned(b, 32) || !is_aligned(d, 32) || !is_aligned(bias, 16)) {
      return cudaErrorInvalidValue;
    }
    std::vector<float> row(static_cast<size_t>(s_.columns));
    for (int64_t m = 0; m < s_.batch; ++m) {
      for (int64_t i = 0; i < s_.rows; ++i) {
        add_row(a, b, m, i, row.data());
        for (int64_t j = 0; j < s_.columns; ++j) {
          const int64_t at = m * s_.stride_d + i * s_.columns + j;
          float value = s_.alpha * row[static_cast<size_t>(j)];
          if (s_.beta != 0) value += s_.beta * load(d, s_.dtype, at);
          if (s_.bias) value += load(bias, s_.dtype, j);
          store(d, s_.dtype, at, value);
        }
      }
    }
    return cudaSuccess;
  }

 private:
  void add_row(const void* a, const void* b, int64_t m, int64_t i, float* row) const {
    std::fill_n(row, s_.columns, 0.0f);
    for (int64_t k = 0; k < s_.inner; ++k) {
      const int64_t at_a = m * s_.stride_a + (s_.transpose_a ? k * s_.rows + i : i * s_.inner + k);
      const float x = load(a, s_.dtype, at_a);
      const int64_t first = m * s_.stride_b + (s_.transpose_b ? k : k * s_.columns);
      const int64_t step = s_.transpose_b ? s_.inner : 1;
      for (int64_t j = 0; j < s_.columns; ++j) row[j] += x * load(b, s_.dtype, first + j * step);
    }
  }

  ProductShape s_;
};

}  // namespace

std::unique_ptr<MatrixProduct> make_product(ofsdp_device&, const ProductShape& shape) {
  return std::make_unique<Loops>(shape);
}

}  // namespace ofsdp::cuda
