// Matrix products of one size that threads run side by side: dst = alpha A' B', or dst += alpha A'
// B', all dense and row-major (an empty sum is 0); A' is A^T if transpose_a, the same for B'.
// `count` such products lie one after the other. float and bfloat16 (with float products) go
// through oneDNN, each call on the thread that makes it; double goes through plain loops and takes
// no alpha and one product.
//
// It owns the primitives, and memory objects for each slot. Call `run` from any thread, one at a
// time per slot. Without an implementation in oneDNN the program ends while planning; every float32
// product has one, and every bfloat16 one if is_available.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {

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
  static bool is_available();    // whether this processor multiplies T by itself
  size_t scratch_bytes() const;  // of each slot
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

}  // namespace ofsdp::kernels
