// Matrix products by OpenBLAS and oneDNN.
//
// blas_product computes dst = alpha A' B' + (accumulate ? dst : 0) in one OpenBLAS call: float32,
// row-major, A' = A or A^T, B' = B or B^T; a pitch is the distance between stored rows, in
// elements. OpenBLAS keeps packed factors in memory that the plan does not count; inside
// parallel_for it uses one thread. REQUIRES: blas_fits, blas_is_present.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {

struct BlasFactor {
  const float* data = nullptr;
  int64_t pitch = 0;
  bool transposed = false;  // stored as the transposed matrix
};

struct BlasSize {
  int64_t rows = 0, inner = 0, columns = 0;
};

// Returns whether the sizes fit an int, which OpenBLAS counts in.
inline bool blas_fits(const BlasSize& size) {
  return std::max({size.rows, size.inner, size.columns}) <= INT32_MAX;
}

void blas_product(const BlasSize& size, float alpha, const BlasFactor& a, const BlasFactor& b,
                  bool accumulate, float* dst, int64_t dst_pitch);

// As blas_product, with threads that share dst's rows or columns: OpenBLAS itself would allocate in
// each threaded call.
void blas_product_by_parts(const BlasSize& size, float alpha, const BlasFactor& a,
                           const BlasFactor& b, bool accumulate, float* dst, int64_t dst_pitch);

// Loads OpenBLAS at the first call: that takes a fourth as long as an empty process, and with
// AVX-512 oneDNN takes nearly all products. Call it while making a kernel that multiplies by
// OpenBLAS, so that no step waits. Returns false if libofsdp_openblas.so is not where this program
// or library looks. REQUIRES: no thread calls setenv meanwhile, or getenv on an Intel processor.
bool blas_is_present();

// Returns the value that OPENBLAS_CORETYPE must have while OpenBLAS loads, so that it multiplies at
// this processor's rate; null if it needs none or the variable is set. See [Note: OpenBLAS's core].
const char* blas_core_to_name();

// `count` products with one size, one after the other, which threads run side by side: dst = alpha
// A' B', or dst += alpha A' B', all dense and row-major (an empty sum is 0); A' is A^T if
// transpose_a, the same for B'. float and bfloat16 (with float results) go through oneDNN, each
// call on the calling thread; double goes through plain loops, without alpha and with one product.
//
// Owns the primitives, and memory objects for each slot. Any thread may call `run`, one at a time
// per slot. If oneDNN has no implementation, the program aborts while planning; it has one for
// every float32 product, and for every bfloat16 product if is_available.

struct TileSize {
  int64_t rows = 0, inner = 0, columns = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  double alpha = 1;
  int64_t count = 1;
};

template <typename T>  // float, BFloat16
class TileProduct {
 public:
  TileProduct(const TileSize& size, int slots);
  static bool is_available();    // this processor multiplies T itself
  size_t scratch_bytes() const;  // for each slot
  void run(int slot, const T* a, const T* b, float* dst, std::byte* scratch) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

extern template class TileProduct<float>;
extern template class TileProduct<BFloat16>;

template <>
class TileProduct<double> {
 public:
  TileProduct(const TileSize& size, int) : size_(size) {}
  static bool is_available() { return true; }
  size_t scratch_bytes() const { return 0; }
  void run(int slot, const double* a, const double* b, double* dst, std::byte* scratch) const;

 private:
  TileSize size_;
};

// Whether oneDNN is there, for the choice of kernels. Folders named onednn/ call the library; in a
// build without it CMake compiles the folders named without_onednn/ instead, whose kernels refuse
// every problem or use OpenBLAS.

namespace onednn {

bool is_present();      // the build has the library
std::string version();  // "3.6.2"; empty without the library
bool has_avx512();      // and it may use AVX-512 here: ONEDNN_MAX_CPU_ISA

// Why an implementation refuses a problem.
inline constexpr const char* kNoOneDnn = "this build has no oneDNN";

}  // namespace onednn

}  // namespace ofsdp::kernels
