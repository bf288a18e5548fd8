#include "kernels/ops/matmul/blas_product.h"

#include <cblas.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kPackedColumns = 4096;      // rows of dst a call: columns for OpenBLAS
constexpr int64_t kSmallest = 1 << 18;        // multiplications, below which a call costs more
constexpr int64_t kTile = 16;                 // rows or columns that are dealt to threads together
constexpr int64_t kLargest = (1u << 31) - 1;  // OpenBLAS counts in int

bool fits(const MatrixProduct& p) { return std::max({p.rows, p.inner, p.columns}) <= kLargest; }

struct Part {
  int64_t row, rows, column, columns;  // of dst
};

void multiply_part(const MatrixProduct& p, const float* a, const float* b, float* dst,
                   const Part& part) {
  const auto number = [](int64_t n) { return static_cast<blasint>(n); };
  const float beta = p.addend == MatrixProduct::Addend::kNone ? 0.0f : 1.0f;
  cblas_sgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans,
              p.transpose_b ? CblasTrans : CblasNoTrans, number(part.rows), number(part.columns),
              number(p.inner), p.alpha, a + part.row * (p.transpose_a ? 1 : p.inner),
              number(p.transpose_a ? p.rows : p.inner),
              b + part.column * (p.transpose_b ? p.inner : 1),
              number(p.transpose_b ? p.inner : p.columns), beta,
              dst + part.row * p.columns + part.column, number(p.columns));
}

// Shared out here, not by OpenBLAS, which allocates at each call that starts threads.
void multiply_rows(const MatrixProduct& p, const float* a, const float* b, float* dst,
                   int64_t first, int64_t rows) {
  const bool by_rows = rows >= p.columns;
  const int64_t number = by_rows ? rows : p.columns;
  const int64_t unit = number >= kTile * pool_threads() ? kTile : 1;
  parallel_for((number + unit - 1) / unit, 1, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * unit, count = std::min(end * unit, number) - at;
    multiply_part(p, a, b, dst,
                  by_rows ? Part{first + at, count, 0, p.columns} : Part{first, rows, at, count});
  });
}

}  // namespace

Acceptance blas_accepts(const MatrixProduct& p) {
  if (p.dtype != DType::kFloat32) return Acceptance::refuse("not float32");
  if (onednn::has_avx512()) return Acceptance::refuse("oneDNN is faster with AVX-512");
  if (!p.batch_a.empty() || !p.batch_b.empty()) return Acceptance::refuse("a batch of matrices");
  if (!p.transpose_a && !p.transpose_b) return Acceptance::refuse("no factor is transposed");
  const bool small = p.rows * p.columns < kSmallest / std::max<int64_t>(p.inner, 1);
  return accept_if(!small && p.rows * p.columns > 1 && fits(p), "too small to gain");
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
