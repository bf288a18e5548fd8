#include "kernels/ops/matmul/blas_product.h"

#include <cblas.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/onednn.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kPackedColumns = 4096;      // rows of dst a call: columns for OpenBLAS
constexpr int64_t kSmallest = 1 << 18;        // multiplications, below which a call costs more
constexpr int64_t kLargest = (1u << 31) - 1;  // OpenBLAS counts in int

bool fits(const MatrixProduct& p) { return std::max({p.rows, p.inner, p.columns}) <= kLargest; }

// `rows` rows of dst from row `first` on.
void multiply_rows(const MatrixProduct& p, const float* a, const float* b, float* dst,
                   int64_t first, int64_t rows) {
  const auto number = [](int64_t n) { return static_cast<blasint>(n); };
  const float beta = p.addend == MatrixProduct::Addend::kNone ? 0.0f : 1.0f;
  cblas_sgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans,
              p.transpose_b ? CblasTrans : CblasNoTrans, number(rows), number(p.columns),
              number(p.inner), p.alpha, a + first * (p.transpose_a ? 1 : p.inner),
              number(p.transpose_a ? p.rows : p.inner), b,
              number(p.transpose_b ? p.inner : p.columns), beta, dst + first * p.columns,
              number(p.columns));
}

}  // namespace

Acceptance blas_accepts(const MatrixProduct& p) {
  if (p.dtype != DType::kFloat32) return Acceptance::refuse("not float32");
  if (onednn::has_avx512()) return Acceptance::refuse("oneDNN is faster with AVX-512");
  if (!p.batch_a.empty() || !p.batch_b.empty()) return Acceptance::refuse("a batch of matrices");
  if (!p.transpose_a && !p.transpose_b) return Acceptance::refuse("no factor is transposed");
  const bool small = p.rows * p.columns < kSmallest / std::max<int64_t>(p.inner, 1);
  return accept_if(!small && fits(p), "too small to gain");
}

void blas_multiply(const MatrixProduct& p, const float* a, const float* b, float* dst) {
  multiply_rows(p, a, b, dst, 0, p.rows);
}

std::unique_ptr<Kernel> make_blas_product(const MatrixProduct& p) {
  return make_kernel([p](const KernelArgs& args) {
    const float *a = args.in<float>(0), *b = args.in<float>(1);
    float* dst = args.out<float>(0);
    for (int64_t first = 0; first < p.rows; first += kPackedColumns) {
      const int64_t rows = std::min(kPackedColumns, p.rows - first);
      if (p.addend == MatrixProduct::Addend::kBias) {
        for (int64_t row = first; row < first + rows; ++row)
          std::memcpy(dst + row * p.columns, args.in<float>(2),
                      static_cast<size_t>(p.columns) * sizeof(float));
      }
      multiply_rows(p, a, b, dst, first, rows);
    }
  });
}

}  // namespace ofsdp::kernels::ops
