// JoinedRows: the rows of all ranks that ofsdp.JoinRows returns, a float32 tensor [ranks, part].
// The part of a rank begins with a header; its first element is the number of rows. At most `most`
// rows of `width` elements follow. A part is a whole number of cache lines, so that ranks write
// side by side.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/core/tensor.h"

namespace ofsdp::kernels {

class JoinedRows {
 public:
  static constexpr int64_t kHeader = 16;  // elements

  static int64_t part_of(int64_t most, int64_t width) {
    return (kHeader + most * width + kHeader - 1) / kHeader * kHeader;
  }

  // `shape`: [ranks, part_of(most, width)].
  JoinedRows(const float* data, const Shape& shape, int64_t most, int64_t width)
      : data_(data), ranks_(shape[0]), part_(shape[1]), most_(most), width_(width) {}

  int64_t ranks() const { return ranks_; }
  // Returns a number that fits the part, whatever the bytes are.
  int64_t rows(int64_t rank) const {
    const float said = data_[rank * part_];
    return said > 0 ? static_cast<int64_t>(std::min(said, static_cast<float>(most_))) : 0;
  }
  const float* row(int64_t rank, int64_t i = 0) const {
    return data_ + rank * part_ + kHeader + i * width_;
  }
  int64_t rows() const {
    int64_t sum = 0;
    for (int64_t r = 0; r < ranks_; ++r) sum += rows(r);
    return sum;
  }

 private:
  const float* data_;
  int64_t ranks_, part_, most_, width_;
};

}  // namespace ofsdp::kernels
