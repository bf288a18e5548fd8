// Sizes and passes of DFT, for the CPU and for devices. kernels/ops/matmul/dft.cpp says what the
// operator computes.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/core/kernel.h"

namespace ofsdp::kernels::ops {

// x is [outer, in, inner, x_parts], y is [outer, out, inner, y_parts].
struct DftExtent {
  int axis = 0;
  int64_t outer = 1, in = 0, inner = 1, x_parts = 1;
  int64_t n = 0, out = 0, y_parts = 2;
  bool inverse = false, onesided = false;

  int64_t half() const { return n / 2 + 1; }
  bool makes_real() const { return inverse && onesided; }
  int64_t used() const { return std::min(in, makes_real() ? half() : n); }  // elements of x
};

// `length`: the operand dft_length, if given. Returns kInput errors that name what was expected.
Result<DftExtent> dft_extent(const Attributes& attributes, const TensorDesc& x,
                             std::optional<int64_t> length, int64_t axis);

// [Note: Stockham passes] Stockham's transform has a pass per factor of n. With n = before * radix
// * after, input position (p + after j) before + q and output position (radix p + k) before + q:
//
//   to_k = sum over j < radix of from_j w^(k (j n / radix + p before))
//
// so that after the last pass everything is in natural order.
struct DftPass {
  int64_t radix, before, after;
};
std::vector<DftPass> dft_passes(int64_t n);

}  // namespace ofsdp::kernels::ops
