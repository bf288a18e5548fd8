// Reductions over some axes of a dense row-major tensor of float32 or a 16-bit float: sums, also of
// |x| and x^2, products, maxima and minima. Partial results are float32.
//
// The order of the operations depends on the shape only: never on threads, and a column's order
// never on other columns. Long sums are cut into blocks of kSumBlock and the totals added, so that
// the error grows with the number of blocks and not of elements.
//
//   Reduction sum(shape, reduced, ReduceKind::kSum);   // reduced[axis]: is it summed away
//   sum.run(src, dst, scale);                          // dst: the kept axes in order; dst = scale
//   * sum
//
// An empty sum is 0, an empty product 1, an empty maximum -infinity; a NaN is the maximum and the
// minimum. Made while planning; `run` allocates nothing and fans out over the pool.
#pragma once

#include <vector>

#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {

enum class ReduceKind { kSum, kSumAbs, kSumSquares, kProduct, kMax, kMin };

class Reduction {
 public:
  Reduction(const Shape& shape, const std::vector<bool>& reduced, ReduceKind kind);
  template <typename T>  // float, BFloat16, Half
  void run(const T* src, T* dst, float scale = 1.0f) const;

 private:
  void columns(const auto* src, float* total, int64_t count) const;
  float element(const auto* src) const;

  StridedLoop kept_;     // operands: src, dst; a row for each kept element
  StridedLoop reduced_;  // operand: src
  ReduceKind kind_;
};

extern template void Reduction::run(const float*, float*, float) const;
extern template void Reduction::run(const BFloat16*, BFloat16*, float) const;
extern template void Reduction::run(const Half*, Half*, float) const;

}  // namespace ofsdp::kernels
