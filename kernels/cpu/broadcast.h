// Loops over dense tensors with different strides: broadcasting, slices, transposes, layouts.
//
// A StridedLoop walks one shape's elements in several operands at once. It drops axes of size 1,
// merges axes that are contiguous in every operand, and orders axes so that it walks the last
// operand (the one written) forwards in memory. `rows` rows with `inner` elements remain, each with
// a constant step per operand. Strides count elements: 0 broadcasts, a negative one walks
// backwards.
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

// Returns each logical axis's stride in memory, layout included.
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

  // Calls f(offsets) for rows begin .. end-1, with the row's offset in each operand.
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
