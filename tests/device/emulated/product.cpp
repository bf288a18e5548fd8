// In place of cuBLASLt: kernels/cuda/matmul/product.h by plain loops, in float32, rounded once. It
// fills the requested workspace with garbage. It refuses addresses with less alignment than
// product.cpp promises to cuBLASLt, and a bias that is not at a multiple of 16 bytes.
#include "kernels/cuda/matmul/product.h"

#include <cstdint>
#include <cstring>

#include "kernels/core/tensor.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/pointwise/formulas.cuh"
#include "tests/support/float_elements.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr size_t kWorkspace = 1000;

bool is_aligned(const void* data, size_t to) { return reinterpret_cast<uintptr_t>(data) % to == 0; }

class Loops final : public MatrixProduct {
 public:
  explicit Loops(const ProductShape& shape) : s_(shape) {}
  size_t workspace_bytes() const override { return kWorkspace; }

  cudaError_t run(cudaStream_t, const ProductOperands& o) override {
    ++emulator::launches();
    std::memset(o.workspace, 0xFF, kWorkspace);
    const bool sums = s_.bias_grad != BiasGrad::kNone;
    if (!is_aligned(o.a, s_.alignment) || !is_aligned(o.b, s_.alignment) ||
        !is_aligned(o.d, s_.alignment) || !is_aligned(o.bias, 16)) {
      return cudaErrorInvalidValue;
    }
    if ((o.bias != nullptr) != s_.bias || (o.aux != nullptr) != s_.aux ||
        (o.bias_grad != nullptr) != sums) {
      return cudaErrorInvalidValue;
    }
    std::vector<float> row(static_cast<size_t>(s_.columns));
    std::vector<float> of_d(row.size());
    for (int64_t m = 0; m < s_.batch; ++m) {
      for (int64_t i = 0; i < s_.rows; ++i) {
        add_row(o.a, o.b, m, i, row.data());
        for (int64_t j = 0; j < s_.columns; ++j) {
          const float value = finished(o, row[static_cast<size_t>(j)], m, i, j);
          store_float(o.d, s_.result(), m * s_.stride_d + i * s_.row_d() + j, value);
          of_d[static_cast<size_t>(j)] += value;
        }
      }
    }
    if (s_.bias_grad == BiasGrad::kOfD) {
      for (int64_t j = 0; j < s_.columns; ++j) {
        store_float(o.bias_grad, s_.dtype, j, of_d[static_cast<size_t>(j)]);
      }
    } else if (sums) {
      sum_operand(o);
    }
    return cudaSuccess;
  }

 private:
  // From the bare product to D's element.
  float finished(const ProductOperands& o, float product, int64_t m, int64_t i, int64_t j) const {
    const int64_t at = m * s_.stride_d + i * s_.row_d() + j;
    float z = s_.alpha * product;
    if (s_.beta != 0) z += s_.beta * load_float(o.c != nullptr ? o.c : o.d, s_.result(), at);
    if (s_.bias) z += load_float(o.bias, s_.dtype, j);
    if (s_.activation == Activation::kGelu) {
      if (s_.aux) store_float(o.aux, s_.dtype, at, z);
      return gelu_tanh_of<DeviceMath>(z);
    }
    if (s_.activation == Activation::kGeluGrad) {
      return z * gelu_tanh_slope<DeviceMath>(load_float(o.aux, s_.dtype, at));
    }
    return z;
  }

  // Sums op(A) over the columns, or op(B) over the rows: both over `inner`.
  void sum_operand(const ProductOperands& o) const {
    const bool of_a = s_.bias_grad == BiasGrad::kOfA;
    const int64_t count = of_a ? s_.rows : s_.columns;
    const bool inner_first = of_a ? s_.transpose_a : !s_.transpose_b;
    for (int64_t i = 0; i < count; ++i) {
      float total = 0;
      for (int64_t k = 0; k < s_.inner; ++k) {
        const int64_t row = of_a ? s_.row_a() : s_.row_b();
        const int64_t at = inner_first ? k * row + i : i * row + k;
        total += load_float(of_a ? o.a : o.b, s_.dtype, at);
      }
      store_float(o.bias_grad, s_.dtype, i, total);
    }
  }

  void add_row(const void* a, const void* b, int64_t m, int64_t i, float* row) const {
    std::fill_n(row, s_.columns, 0.0f);
    for (int64_t k = 0; k < s_.inner; ++k) {
      const int64_t at_a =
          m * s_.stride_a + (s_.transpose_a ? k * s_.row_a() + i : i * s_.row_a() + k);
      const float x = operand(a, at_a);
      const int64_t first = m * s_.stride_b + (s_.transpose_b ? k : k * s_.row_b());
      const int64_t step = s_.transpose_b ? s_.row_b() : 1;
      for (int64_t j = 0; j < s_.columns; ++j) row[j] += x * operand(b, first + j * step);
    }
  }

  float operand(const void* from, int64_t i) const {
    const float value = load_float(from, s_.dtype, i);
    return s_.tf32 ? to_tf32(value) : value;
  }

  ProductShape s_;
};

}  // namespace

std::unique_ptr<MatrixProduct> make_product(DeviceState& device, ProductShape shape, int64_t) {
  if (!product_has_epilogue(shape)) return nullptr;
  shape.tf32 = device.tf32 && shape.dtype == DType::kFloat32;
  return std::make_unique<Loops>(shape);
}

}  // namespace ofsdp::kernels::cuda
