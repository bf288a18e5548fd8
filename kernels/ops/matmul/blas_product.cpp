#include "kernels/ops/matmul/blas_product.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/onednn_presence.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kPackedColumns = 4096;  // rows of dst a call: columns for OpenBLAS
constexpr int64_t kSmallest = 1 << 18;    // multiplications, below which a call costs more

// oneDNN reads such a B where it lies, and its rows, a multiple of 1 KB apart, share few sets of
// the first-level cache.
bool onednn_reads_b_slowly(const MatrixProduct& p) {
  if (p.transpose_a || p.transpose_b || p.rows > 512) return false;
  return (p.columns % 512 == 0 && p.rows >= 8) || (p.columns % 256 == 0 && p.rows >= 128);
}

// Few products make up a sum: OpenBLAS copies its factors all the same.
bool onednn_turns_a_fast(const MatrixProduct& p) {
  return !p.transpose_b && p.inner <= 256 && p.rows >= 512 && p.columns >= 512;
}

bool fits(const MatrixProduct& p) { return blas_fits({p.rows, p.inner, p.columns}); }

// `rows` of dst from `first` on, by all threads or by the one that calls.
void multiply_rows(const MatrixProduct& p, const float* a, const float* b, float* dst,
                   int64_t first, int64_t rows, bool by_parts) {
  const auto multiply = by_parts ? blas_product_by_parts : blas_product;
  multiply(
      {rows, p.inner, p.columns}, p.alpha,
      {a + first * (p.transpose_a ? 1 : p.inner), p.transpose_a ? p.rows : p.inner, p.transpose_a},
      {b, p.transpose_b ? p.inner : p.columns, p.transpose_b},
      p.addend != MatrixProduct::Addend::kNone, dst + first * p.columns, p.columns);
}

// One matrix; `bias` only for Addend::kBias.
void multiply_matrix(const MatrixProduct& p, const float* a, const float* b, const float* bias,
                     float* dst, bool by_parts) {
  for (int64_t first = 0; first < p.rows; first += kPackedColumns) {
    const int64_t rows = std::min(kPackedColumns, p.rows - first);
    if (p.addend == MatrixProduct::Addend::kBias) {
      for (int64_t row = first; row < first + rows; ++row)
        std::memcpy(dst + row * p.columns, bias, static_cast<size_t>(p.columns) * sizeof(float));
    }
    multiply_rows(p, a, b, dst, first, rows, by_parts);
  }
}

}  // namespace

Acceptance blas_accepts(const MatrixProduct& p) {
  if (p.dtype != DType::kFloat32) return Acceptance::refuse("not float32");
  if (!onednn::is_present())
    return accept_with_blas(accept_if(fits(p), "an axis of 2^31 elements or more"));
  if (onednn::has_avx512()) return Acceptance::refuse("oneDNN is faster with AVX-512");
  if (!p.batch_a.empty() || !p.batch_b.empty()) return Acceptance::refuse("a batch of matrices");
  if (!p.transpose_a && !p.transpose_b && !onednn_reads_b_slowly(p))
    return Acceptance::refuse("oneDNN is faster where no factor is transposed");
  if (p.transpose_a && onednn_turns_a_fast(p)) return Acceptance::refuse("a short inner axis");
  const bool small = p.rows * p.columns < kSmallest / std::max<int64_t>(p.inner, 1);
  return accept_with_blas(
      accept_if(!small && p.rows * p.columns > 1 && fits(p), "too small to gain"));
}

// Threads share the matrices of a batch where there are enough of them, else each matrix.
std::unique_ptr<Kernel> make_blas_product(const MatrixProduct& p) {
  OFSDP_CHECK(blas_is_present());  // loaded here, where it was not asked for before
  const std::vector<int64_t> batch = p.batch();
  int64_t matrices = 1;
  for (int64_t axis : batch) matrices *= axis;
  return make_kernel([p, batch, matrices](const KernelArgs& args) {
    const float* bias = p.addend == MatrixProduct::Addend::kBias ? args.in<float>(2) : nullptr;
    const bool by_parts = matrices < pool_threads();
    parallel_each(matrices, by_parts ? matrices : 1, [&](int64_t m) {
      const auto [of_a, of_b] = operands_of(p, batch, m);
      multiply_matrix(p, args.in<float>(0) + of_a * p.rows * p.inner,
                      args.in<float>(1) + of_b * p.inner * p.columns, bias,
                      args.out<float>(0) + m * p.rows * p.columns, by_parts);
    });
  });
}

}  // namespace ofsdp::kernels::ops
