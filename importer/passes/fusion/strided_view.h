// StridedView: where the elements of a value lie in a tensor from which they come by nodes that
// only move or name them: Transpose, Split, Reshape and the like. Element (i, j, ...) of the value
// is element first + i steps[0] + j steps[1] + ... of the tensor.
//
// Values. Threads: any. Errors: none where no steps describe a value, as after a Reshape of what a
// Transpose made, in general.
#pragma once

#include <optional>
#include <vector>

#include "kernels/core/shape.h"

namespace ofsdp::importer {

struct StridedView {
  int64_t first = 0;
  std::vector<int64_t> sizes, steps;

  // All of a tensor.
  static StridedView of(const kernels::Shape& shape) {
    StridedView made{0, shape.axes(), std::vector<int64_t>(shape.axes().size(), 1)};
    for (size_t i = made.steps.size(); i-- > 1;) {
      made.steps[i - 1] = made.steps[i] * made.sizes[i];
    }
    return made;
  }

  // REQUIRES: `perm` is one of the axes.
  StridedView permuted(const std::vector<int64_t>& perm) const {
    StridedView made{first, {}, {}};
    for (const int64_t axis : perm) {
      made.sizes.push_back(sizes[static_cast<size_t>(axis)]);
      made.steps.push_back(steps[static_cast<size_t>(axis)]);
    }
    return made;
  }

  // Elements begin .. begin + size of an axis.
  StridedView part(size_t axis, int64_t begin, int64_t size) const {
    StridedView made = *this;
    made.first += begin * steps[axis];
    made.sizes[axis] = size;
    return made;
  }

  // The same elements in another shape; none where no steps describe it.
  std::optional<StridedView> reshaped(const kernels::Shape& shape) const {
    const StridedView from = without_ones();
    StridedView made = of(shape);
    made.first = first;
    const std::vector<int64_t>& to = made.sizes;
    if (shape.numel() == 0) return std::nullopt;
    for (size_t i = 0, j = 0; i < from.sizes.size();) {  // runs of axes with as many elements
      int64_t here = from.sizes[i], there = to[j];
      size_t i_end = i + 1, j_end = j + 1;
      while (here != there) {
        if (there < here) {
          there *= to[j_end++];
        } else if (from.steps[i_end - 1] != from.steps[i_end] * from.sizes[i_end]) {
          return std::nullopt;
        } else {
          here *= from.sizes[i_end++];
        }
      }
      int64_t step = from.steps[i_end - 1];
      for (size_t k = j_end; k-- > j;) {
        made.steps[k] = step;
        step *= to[k];
      }
      i = i_end;
      j = j_end;
    }
    return made;
  }

 private:
  StridedView without_ones() const {
    StridedView made{first, {}, {}};
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 1) continue;
      made.sizes.push_back(sizes[i]);
      made.steps.push_back(steps[i]);
    }
    return made;
  }
};

}  // namespace ofsdp::importer
