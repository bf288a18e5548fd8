// Kept rows: in tensors [N, ...] with a row for each label of a loss, the rows with labels that the
// loss does not ignore. importer/passes/passes.h explains their use.
//
//   rows   int64 [N + 1]: how many are left out, the places of the kept ones in rising order, and
//          zeros. All zeros: all are kept, so a kernel that is timed on zeros does all of its work.
//
// A product has kernels for eight numbers of rows and takes the least that holds the kept ones,
// rounded_rows. The rows after the last kept one are zeros in the operands.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/core/tensor.h"

namespace ofsdp::kernels {

inline int64_t kept_of(const int64_t* rows, int64_t n) { return n - rows[0]; }

// Sixteenths of N: from an eighth on, at most half as many more as are kept.
inline constexpr std::array<int64_t, 8> kRowSixteenths{1, 2, 3, 4, 6, 8, 12, 16};

constexpr int64_t rows_of_size(size_t size, int64_t n) {
  return (n * kRowSixteenths[size] + 15) / 16;
}
constexpr size_t size_for(int64_t kept, int64_t n) {
  size_t size = 0;
  while (rows_of_size(size, n) < kept) ++size;
  return size;
}
constexpr int64_t rounded_rows(int64_t kept, int64_t n) {
  return kept == 0 ? 0 : rows_of_size(size_for(kept, n), n);
}

// Returns whether `rows` fits tensors of n rows.
inline bool are_kept_rows(const TensorDesc& rows, int64_t n) {
  return rows.dtype == DType::kInt64 && rows.shape == Shape{n + 1};
}

}  // namespace ofsdp::kernels
