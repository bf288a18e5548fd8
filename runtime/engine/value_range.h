// ValueRange: the least and the largest finite value of a tensor, and how many of its values are
// NaN or infinite. For runs that end: it is slow.
//
// Ownership: a value. Threads: one. No allocation. Errors: none; nothing is known of types that are
// no numbers.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>

#include "kernels/core/tensor.h"

namespace ofsdp::runtime {

struct ValueRange {
  double least = std::numeric_limits<double>::infinity();  // of the finite values
  double most = -std::numeric_limits<double>::infinity();
  int64_t count = 0, nans = 0, infinite = 0;

  // Adds elements of `dtype` that lie side by side; a whole number of them.
  void add(DType dtype, std::span<const std::byte> bytes);
};

// "-0.4 to 2.31, 3 NaN, 1 infinite".
std::string text(const ValueRange& range);

}  // namespace ofsdp::runtime
