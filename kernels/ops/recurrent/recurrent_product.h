// Parts of the recurrent kernels: arrays in the workspace, and a matrix product of any of them: oneDNN's for float32, plain loops for float64.
// Operands are pointers of the moment; see matrix_product.h for the meaning of MatrixProduct.
//
// Owns: the kernel it runs. Threads: as Kernel. `workspace` has workspace_bytes().
#pragma once

#include "kernels/core/memory.h"
#include "kernels/ops/matmul/matrix_product.h"

namespace ofsdp::kernels::ops {

// Places of arrays in the workspace.
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

template <typename T>
class RecurrentProduct {
 public:
  RecurrentProduct() = default;
  explicit RecurrentProduct(const MatrixProduct& product) : product_(product) {
    if constexpr (std::is_same_v<T, float>) {
      if (onednn_accepts(product)) kernel_ = make_matrix_product(product);
    }
    inputs_.resize(product.addend == MatrixProduct::Addend::kBias ? 3 : 2);
    outputs_.resize(1);
  }

  size_t workspace_bytes() const { return kernel_ ? kernel_->workspace_bytes() : 0; }

  // `bias` only for Addend::kBias.
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

// dst = A' B', A' rows x inner and B' inner x columns.
inline MatrixProduct plain_product(DType dtype, int64_t rows, int64_t inner, int64_t columns) {
  MatrixProduct p;
  p.dtype = dtype;
  p.rows = rows;
  p.inner = inner;
  p.columns = columns;
  return p;
}

}  // namespace ofsdp::kernels::ops
