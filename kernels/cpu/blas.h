// One call of OpenBLAS: dst = alpha A' B' + (accumulate ? dst : 0), float32, row-major, A' = A or
// A^T, B' = B or B^T. A pitch is the distance of two stored rows, in elements.
//
// Memory: OpenBLAS keeps packed parts of a factor in memory of its own, which the plan does not
// count. Inside parallel_for it uses one thread. REQUIRES: blas_fits, blas_is_present.
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

// Returns whether the sizes fit an int, in which OpenBLAS counts.
inline bool blas_fits(const BlasSize& size) {
  return std::max({size.rows, size.inner, size.columns}) <= INT32_MAX;
}

void blas_product(const BlasSize& size, float alpha, const BlasFactor& a, const BlasFactor& b,
                  bool accumulate, float* dst, int64_t dst_pitch);

// The same with rows or columns of dst shared by the pool: OpenBLAS itself would allocate at each
// call that uses threads.
void blas_product_by_parts(const BlasSize& size, float alpha, const BlasFactor& a,
                           const BlasFactor& b, bool accumulate, float* dst, int64_t dst_pitch);

// Loads OpenBLAS at the first call: loading takes a fourth of the time of an empty process, and
// with AVX-512 nearly all products are oneDNN's. Call it while making a kernel that multiplies by
// OpenBLAS, so that no step waits. Returns false if libofsdp_openblas.so is not where this program
// or library looks. REQUIRES: no thread calls setenv meanwhile, or getenv on an Intel processor.
bool blas_is_present();

// Returns the value that OPENBLAS_CORETYPE must have while OpenBLAS is loaded, so that it
// multiplies at this processor's rate; null if it needs none or the variable is set. See [Note:
// OpenBLAS's core].
const char* blas_core_to_name();

}  // namespace ofsdp::kernels
