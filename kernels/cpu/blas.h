// One call of OpenBLAS: dst = alpha A' B' + (accumulate ? dst : 0), float32, row-major, A' = A or
// A^T, B' = B or B^T. A pitch is the distance of two stored rows, in elements.
//
// Memory: OpenBLAS keeps packed parts of a factor in memory of its own, which the plan does not
// count. Threads: any; inside of parallel_for it uses one. Errors: none; REQUIRES: blas_fits,
// blas_is_present.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ofsdp::kernels {

struct BlasFactor {
  const float* data = nullptr;
  int64_t pitch = 0;
  bool transposed = false;  // stored as A^T
};

struct BlasSize {
  int64_t rows = 0, inner = 0, columns = 0;
};

// OpenBLAS counts in int.
inline bool blas_fits(const BlasSize& size) {
  return std::max({size.rows, size.inner, size.columns}) <= INT32_MAX;
}

void blas_product(const BlasSize& size, float alpha, const BlasFactor& a, const BlasFactor& b,
                  bool accumulate, float* dst, int64_t dst_pitch);

// The same with rows or columns of dst dealt to the pool: OpenBLAS, when it shares out a product by
// itself, allocates at each call.
void blas_product_by_parts(const BlasSize& size, float alpha, const BlasFactor& a,
                           const BlasFactor& b, bool accumulate, float* dst, int64_t dst_pitch);

// Loads OpenBLAS at the first call, a fourth of the time that an empty process takes, since with
// AVX-512 nearly all products are oneDNN's. Whoever makes a kernel that multiplies by it asks, so
// that no step waits. False: libofsdp_openblas.so is not where this program or library looks.
// Threads: any, but while it loads none may call setenv, or getenv on an Intel processor.
bool blas_is_present();

// Returns what OPENBLAS_CORETYPE must be while OpenBLAS is loaded, so that it multiplies at this
// processor's rate; null: nothing, or the variable is set. [Note: OpenBLAS's core]
const char* blas_core_to_name();

}  // namespace ofsdp::kernels
