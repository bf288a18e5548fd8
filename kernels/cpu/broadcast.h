// Loops over dense tensors of different strides: broadcasting, slices, transposes, layouts.
//
// A StridedLoop walks the elements of one shape in several operands at once. Axes of size 1 are
// dropped, axes that follow each other in memory in every operand are merged, and the axes are
// ordered so that the last operand (the one written) is walked forwards in memory. `rows` rows of
// `inner` elements remain, each with a constant step per operand. Strides are counted in elements;
// 0 is a broadcast axis, a negative one walks backwards.
//
// Made while planning; walking allocates nothing. REQUIRES: infer has checked the shapes; it
// refuses more than kMaxLoopAxes axes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/base/budgets.h"
#include "kernels/core/tensor.h"

namespace ofsdp::kernels {

inline constexpr int kMaxLoopAxes = kMaxAxes;

// Stride of each logical axis in memory, layout included.
std::vector<int64_t> strides_of(const TensorDesc& desc);

// The same for `desc` broadcast to `shape`: 0 on broadcast axes.
std::vector<int64_t> broadcast_strides(const TensorDesc& desc, const Shape& shape);

class StridedLoop {
 public:
  static constexpr size_t kMaxOperands = 4;
  using Offsets = std::array<int64_t, kMaxOperands>;
  struct Axis {
    int64_t size = 1;
    Offsets strides = {};
  };

  // strides[operand][axis of shape]
  StridedLoop(const Shape& shape, const std::vector<std::vector<int64_t>>& strides);

  int64_t rows() const { return rows_; }
  int64_t inner() const { return inner_.size; }
  int64_t inner_stride(size_t operand) const { return inner_.strides[operand]; }
  const std::vector<Axis>& outer_axes() const { return outer_; }

  // Calls f(offsets) for rows begin .. end-1: the offset of the row in each operand.
  void for_rows(int64_t begin, int64_t end, const auto& f) const {
    Offsets offsets{};
    std::array<int64_t, kMaxLoopAxes> index{};
    seek(begin, index, offsets);
    for (int64_t row = begin; row < end; ++row) {
      f(static_cast<const Offsets&>(offsets));
      for (size_t axis = outer_.size(); axis-- > 0;) {
        for (size_t k = 0; k < kMaxOperands; ++k) offsets[k] += outer_[axis].strides[k];
        if (++index[axis] < outer_[axis].size) break;
        index[axis] = 0;
        for (size_t k = 0; k < kMaxOperands; ++k) {
          offsets[k] -= outer_[axis].strides[k] * outer_[axis].size;
        }
      }
    }
  }

  // Returns the loop without outer axis `axis`, which the caller walks.
  StridedLoop without(size_t axis) const;

 private:
  void seek(int64_t row, std::array<int64_t, kMaxLoopAxes>& index, Offsets& offsets) const;

  std::vector<Axis> outer_;
  Axis inner_;
  int64_t rows_ = 0;
};

}  // namespace ofsdp::kernels
