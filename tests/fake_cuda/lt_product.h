// A product as cuBLASLt defines it, column-major: D = epilogue(alpha op(A) op(B) + beta C), by
// plain loops in float32, rounded once. It fills the workspace with garbage.
//
// Ownership: views. Threads: any. Errors: none.
#pragma once

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <map>
#include <vector>

#include "tests/fake_cuda/cublasLt.h"
#include "tests/support/float_elements.h"

namespace fake_cuda {

// As given to the library, by number.
using Attributes = std::map<int, std::vector<unsigned char>>;

template <typename Value>
Value get(const Attributes& attributes, int which, Value otherwise = {}) {
  const auto it = attributes.find(which);
  if (it != attributes.end()) std::memcpy(&otherwise, it->second.data(), sizeof(otherwise));
  return otherwise;
}

}  // namespace fake_cuda

struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  int64_t rows, columns, leading;
  fake_cuda::Attributes attributes;
};

namespace fake_cuda {

using Layout = cublasLtMatrixLayoutOpaque_t;

// --- elements ---
inline size_t width(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

inline ofsdp::kernels::DType dtype_of(cudaDataType_t type) {
  if (type == CUDA_R_32F) return ofsdp::kernels::DType::kFloat32;
  return type == CUDA_R_16F ? ofsdp::kernels::DType::kFloat16 : ofsdp::kernels::DType::kBFloat16;
}
inline float load(const void* from, cudaDataType_t type, int64_t i) {
  return ofsdp::load_float(from, dtype_of(type), i);
}
inline void store(void* to, cudaDataType_t type, int64_t i, float value) {
  ofsdp::store_float(to, dtype_of(type), i, value);
}

inline constexpr float kRoot = 0.7978845608f, kCube = 0.044715f;  // sqrt(2 / pi)

inline float gelu(float z) { return 0.5f * z * (1 + std::tanh(kRoot * (z + kCube * z * z * z))); }
inline float gelu_slope(float z) {
  const float t = std::tanh(kRoot * (z + kCube * z * z * z));
  return 0.5f * (1 + t) + 0.5f * z * (1 - t * t) * kRoot * (1 + 3 * kCube * z * z);
}

// --- one product: D = epilogue(alpha op(A) op(B) + beta C), column-major, D of m x n ---
struct Matrix {
  Matrix(const Layout& layout, const void* data, bool transposed = false)
      : data(data),
        type(layout.type),
        rows(transposed ? layout.columns : layout.rows),
        columns(transposed ? layout.rows : layout.columns),
        batch(get<int32_t>(layout.attributes, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1)),
        stride(get<int64_t>(layout.attributes, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)),
        down(transposed ? layout.leading : 1),
        across(transposed ? 1 : layout.leading) {}

  int64_t place(int64_t b, int64_t row, int64_t column) const {
    return b * stride + row * down + column * across;
  }
  float at(int64_t b, int64_t row, int64_t column) const {
    return load(data, type, place(b, row, column));
  }
  size_t bytes() const {
    return static_cast<size_t>(place(batch - 1, rows - 1, columns - 1) + 1) * width(type);
  }

  const void* data;
  cudaDataType_t type;
  int64_t rows, columns, batch, stride;
  int64_t down, across;  // elements from one row, or column, to the next
};

struct Product {
  Matrix a, b, c, d;
  float alpha, beta;
  bool tf32;
  int epilogue;
  void* vector;  // the bias, or the bias gradient
  void* aux;
  int64_t aux_leading;
  void* workspace;
  size_t workspace_bytes;

  bool is(std::initializer_list<int> epilogues) const {
    for (const int one : epilogues) {
      if (one == epilogue) return true;
    }
    return false;
  }
  bool has_bias() const {
    return is(
        {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS});
  }
  bool sums() const {
    return is({CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB});
  }
  bool is_gelu() const {
    return is({CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX,
               CUBLASLT_EPILOGUE_GELU_AUX_BIAS});
  }
  bool is_slope() const { return is({CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD}); }
  bool has_aux() const {
    return is_slope() || is({CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS});
  }
  int64_t vector_length() const {
    return epilogue == CUBLASLT_EPILOGUE_BGRADB ? d.columns : d.rows;
  }

  float operand(float value) const { return tf32 ? ofsdp::to_tf32(value) : value; }

  float finished(float product, int64_t m, int64_t row, int64_t column) const {
    const cudaDataType_t type = d.type;
    float z = alpha * product;
    if (beta != 0) z += beta * c.at(m, row, column);
    if (has_bias()) z += load(vector, type, row);
    const int64_t beside = row + column * aux_leading;
    if (is_slope()) return z * gelu_slope(load(aux, type, beside));
    if (!is_gelu()) return z;
    if (has_aux()) store(aux, type, beside, z);
    return gelu(z);
  }

  // op(A) for one matrix, column after column.
  std::vector<float> left(int64_t m) const {
    std::vector<float> values;
    values.reserve(static_cast<size_t>(a.rows * a.columns));
    for (int64_t k = 0; k < a.columns; ++k) {
      for (int64_t row = 0; row < a.rows; ++row) values.push_back(operand(a.at(m, row, k)));
    }
    return values;
  }

  void multiply_column(const std::vector<float>& left, int64_t m, int64_t column,
                       std::vector<float>& sums_of_rows) const {
    const auto height = static_cast<size_t>(d.rows);
    std::vector<float> total(height);
    for (int64_t k = 0; k < a.columns; ++k) {
      const float factor = operand(b.at(m, k, column));
      const float* const of_a = left.data() + static_cast<size_t>(k) * height;
      for (size_t row = 0; row < height; ++row) total[row] += of_a[row] * factor;
    }
    for (size_t row = 0; row < height; ++row) {
      const auto at = static_cast<int64_t>(row);
      const float value = finished(total[row], m, at, column);
      store(const_cast<void*>(d.data), d.type, d.place(m, at, column), value);
      sums_of_rows[row] += value;
    }
  }

  // Over the inner axis, or over D's columns.
  void sum_vector(const std::vector<float>& sums_of_rows) const {
    for (int64_t i = 0; i < vector_length(); ++i) {
      float total =
          epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD ? sums_of_rows[static_cast<size_t>(i)] : 0;
      for (int64_t k = 0; epilogue == CUBLASLT_EPILOGUE_BGRADA && k < a.columns; ++k) {
        total += a.at(0, i, k);
      }
      for (int64_t k = 0; epilogue == CUBLASLT_EPILOGUE_BGRADB && k < b.rows; ++k) {
        total += b.at(0, k, i);
      }
      store(vector, d.type, i, total);
    }
  }

  void run() const {
    if (workspace_bytes > 0) std::memset(workspace, 0xFF, workspace_bytes);
    std::vector<float> sums_of_rows(static_cast<size_t>(d.rows));
    for (int64_t m = 0; m < d.batch; ++m) {
      const std::vector<float> of_a = left(m);
      for (int64_t column = 0; column < d.columns; ++column) {
        multiply_column(of_a, m, column, sums_of_rows);
      }
    }
    if (sums()) sum_vector(sums_of_rows);
  }
};

}  // namespace fake_cuda
