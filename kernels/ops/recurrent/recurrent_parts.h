// Parts of the recurrent kernels: operands (recurrent_shape.h lists them), workspace arrays, matrix
// products, loops over a row. A product owns its kernel; operands are views.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/matmul/matrix_product.h"
#include "kernels/ops/recurrent/recurrent_shape.h"

namespace ofsdp::kernels::ops {

inline bool given(const KernelArgs& a, size_t i) {
  return i < a.inputs.size() && a.inputs[i].data != nullptr && a.inputs[i].desc.present();
}

// Returns whether sample b has a step at time t; t may be outside all times.
inline bool is_active(const RecurrentShape& s, const KernelArgs& a, int64_t t, int64_t b) {
  return t >= 0 && t < s.steps && (!given(a, kLens) || t < a.in<int32_t>(kLens)[b]);
}

// For the gradient: returns LSTM's C before this step.
template <typename T>
const T* cell_before(const RecurrentShape& s, const KernelArgs& a, int64_t d, int64_t t, int64_t b,
                     const T* zeros) {
  const int64_t before = s.time_before(d, t);
  if (is_active(s, a, before, b)) return a.in<T>(kSaved) + s.saved_at(before, d, b) + 4 * s.hidden;
  return given(a, kInitialC) ? a.in<T>(kInitialC) + s.state_at(d, b) : zeros;
}

// Rounds numbers as DynamicQuantizeLinear does, to 8 bits over the range of all that it has seen.
template <typename T>
class RangeRounder {
 public:
  void see(const T* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      least_ = std::min(least_, x[i]);
      most_ = std::max(most_, x[i]);
    }
  }
  void round(const T* x, int64_t n, T* y) const {
    const T scale = most_ == least_ ? T{1} : (most_ - least_) / T{255};
    const T zero = std::rint((T{0} - least_) / scale);
    for (int64_t i = 0; i < n; ++i) {
      y[i] = (std::clamp(std::rint(x[i] / scale) + zero, T{0}, T{255}) - zero) * scale;
    }
  }

 private:
  T least_ = 0, most_ = 0;
};

inline bool is_wanted(const Problem& p, RecurrentGradient output) {
  return p.has_out(output) && p.out(output).numel() > 0;
}

// Assigns offsets to workspace arrays.
class Places {
 public:
  size_t add(size_t bytes) {
    const size_t begin = size_;
    size_ += align_up(bytes, kTensorAlignment);
    return begin;
  }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

// A product: float32 by a library, float64 by plain loops. `workspace` has workspace_bytes().
template <typename T>
class RecurrentProduct {
 public:
  RecurrentProduct() = default;
  explicit RecurrentProduct(const MatrixProduct& product) : product_(product) {
    if constexpr (std::is_same_v<T, float>) {
      if (library_accepts(product)) kernel_ = make_matrix_product(product);
    }
    inputs_.resize(product.addend == MatrixProduct::Addend::kBias ? 3 : 2);
    outputs_.resize(1);
  }

  size_t workspace_bytes() const { return kernel_ ? kernel_->workspace_bytes() : 0; }

  // `bias` is read only for Addend::kBias.
  Status run(const T* a, const T* b, const T* bias, T* dst, std::byte* workspace) {
    if (!kernel_) return loops(a, b, bias, dst);
    inputs_[0].data = bytes(a);
    inputs_[1].data = bytes(b);
    if (inputs_.size() > 2) inputs_[2].data = bytes(bias);
    outputs_[0].data = bytes(dst);
    return kernel_->run({inputs_, outputs_, workspace, nullptr});
  }

 private:
  static std::byte* bytes(const T* data) {
    return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(data));
  }

  Status loops(const T* a, const T* b, const T* bias, T* dst) const {
    const MatrixProduct& p = product_;
    for (int64_t i = 0; i < p.rows; ++i) {
      for (int64_t j = 0; j < p.columns; ++j) {
        T sum = bias != nullptr && p.addend == MatrixProduct::Addend::kBias ? bias[j] : T{0};
        if (p.addend == MatrixProduct::Addend::kAccumulate) sum = dst[i * p.columns + j];
        for (int64_t k = 0; k < p.inner; ++k) {
          sum += a[p.transpose_a ? k * p.rows + i : i * p.inner + k] *
                 b[p.transpose_b ? j * p.inner + k : k * p.columns + j];
        }
        dst[i * p.columns + j] = sum;
      }
    }
    return ok_status();
  }

  MatrixProduct product_;
  std::unique_ptr<Kernel> kernel_;
  std::vector<TensorView> inputs_, outputs_;
};

// dst = A' B', with A' [rows, inner] and B' [inner, columns].
inline MatrixProduct plain_product(DType dtype, int64_t rows, int64_t inner, int64_t columns) {
  MatrixProduct p;
  p.dtype = dtype;
  p.rows = rows;
  p.inner = inner;
  p.columns = columns;
  return p;
}

// A pass over a row. Rows never overlap unless they are the same.
[[gnu::always_inline]] inline void loop(int64_t n, const auto& f) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) f(i);
}

}  // namespace ofsdp::kernels::ops
