#include "kernels/cpu/products.h"

#include <cblas.h>
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "kernels/base/process.h"
#include "kernels/base/status.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels {

namespace {

constexpr int64_t kTile = 16;  // rows or columns that a thread takes at a time

using Sgemm = decltype(&cblas_sgemm);

// Sets the variable only for our OpenBLAS: other libraries in this process, and programs that it
// starts, may have another OpenBLAS that needs no help.
Sgemm load() {
  const char* const core = blas_core_to_name();
  if (core != nullptr) setenv("OPENBLAS_CORETYPE", core, 1);
  void* library = nullptr;
  for (const std::string& path : own_library_paths("libofsdp_openblas.so")) {
    if (library == nullptr) library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (core != nullptr) unsetenv("OPENBLAS_CORETYPE");
  if (library == nullptr) return nullptr;
  return reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
}

Sgemm sgemm() {
  static const Sgemm kLoaded = load();
  return kLoaded;
}

blasint number(int64_t n) { return static_cast<blasint>(n); }
CBLAS_TRANSPOSE order(const BlasFactor& f) { return f.transposed ? CblasTrans : CblasNoTrans; }

}  // namespace

bool blas_is_present() { return sgemm() != nullptr; }

void blas_product(const BlasSize& size, float alpha, const BlasFactor& a, const BlasFactor& b,
                  bool accumulate, float* dst, int64_t dst_pitch) {
  sgemm()(CblasRowMajor, order(a), order(b), number(size.rows), number(size.columns),
          number(size.inner), alpha, a.data, number(a.pitch), b.data, number(b.pitch),
          accumulate ? 1.0f : 0.0f, dst, number(dst_pitch));
}

void blas_product_by_parts(const BlasSize& size, float alpha, const BlasFactor& a,
                           const BlasFactor& b, bool accumulate, float* dst, int64_t dst_pitch) {
  const bool by_rows = size.rows >= size.columns;
  const int64_t whole = by_rows ? size.rows : size.columns;
  const int64_t unit = whole >= kTile * pool_threads() ? kTile : 1;
  parallel_for((whole + unit - 1) / unit, 1, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * unit;
    BlasSize part = size;
    BlasFactor left = a, right = b;
    (by_rows ? part.rows : part.columns) = std::min(end * unit, whole) - at;
    if (by_rows) {
      left.data += at * (a.transposed ? 1 : a.pitch);
    } else {
      right.data += at * (b.transposed ? b.pitch : 1);
    }
    blas_product(part, alpha, left, right, accumulate, dst + at * (by_rows ? dst_pitch : 1),
                 dst_pitch);
  });
}

void TileProduct<double>::run(int, const double* a, const double* b, double* dst,
                              std::byte*) const {
  const TileSize& s = size_;
  OFSDP_CHECK(s.count == 1, "{} products in double", s.count);
  for (int64_t i = 0; i < s.rows; ++i) {
    for (int64_t j = 0; j < s.columns; ++j) {
      double sum = s.accumulate ? dst[i * s.columns + j] : 0;
      for (int64_t k = 0; k < s.inner; ++k) {
        sum += a[s.transpose_a ? k * s.rows + i : i * s.inner + k] *
               b[s.transpose_b ? j * s.inner + k : k * s.columns + j];
      }
      dst[i * s.columns + j] = sum;
    }
  }
}

}  // namespace ofsdp::kernels
