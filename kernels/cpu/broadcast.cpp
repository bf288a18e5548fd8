#include "kernels/cpu/broadcast.h"

#include <algorithm>
#include <cstdlib>

namespace ofsdp::kernels {
namespace {

using Axis = StridedLoop::Axis;

// Returns whether `outer` continues after `inner` in every operand: then both are one axis.
bool merges(const Axis& outer, const Axis& inner) {
  for (size_t k = 0; k < StridedLoop::kMaxOperands; ++k) {
    if (outer.strides[k] != inner.strides[k] * inner.size) return false;
  }
  return true;
}

}  // namespace

std::vector<int64_t> strides_of(const TensorDesc& desc) {
  const int rank = desc.shape.rank();
  std::vector<int64_t> strides(static_cast<size_t>(rank));
  int64_t step = 1;
  const bool last = desc.layout == Layout::kChannelsLast && rank > 1;
  if (last) {
    strides[1] = 1;
    step = desc.shape[1];
  }
  for (int axis = rank - 1; axis >= 0; --axis) {
    if (last && axis == 1) continue;
    strides[static_cast<size_t>(axis)] = step;
    step *= desc.shape[axis];
  }
  return strides;
}

std::vector<int64_t> broadcast_strides(const TensorDesc& desc, const Shape& shape) {
  const std::vector<int64_t> own = strides_of(desc);
  std::vector<int64_t> strides(static_cast<size_t>(shape.rank()), 0);
  const int missing = shape.rank() - desc.shape.rank();
  for (int axis = 0; axis < desc.shape.rank(); ++axis) {
    if (desc.shape[axis] == 1) continue;
    strides[static_cast<size_t>(axis + missing)] = own[static_cast<size_t>(axis)];
  }
  return strides;
}

StridedLoop::StridedLoop(const Shape& shape, const std::vector<std::vector<int64_t>>& strides) {
  OFSDP_CHECK(strides.size() <= kMaxOperands && shape.rank() <= kMaxLoopAxes);
  std::vector<Axis> axes;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] == 1) continue;
    Axis made{shape[axis], {}};
    for (size_t k = 0; k < strides.size(); ++k) {
      made.strides[k] = strides[k][static_cast<size_t>(axis)];
    }
    axes.push_back(made);
  }
  const size_t dst = strides.size() - 1;
  std::ranges::stable_sort(axes, [dst](const Axis& a, const Axis& b) {
    return std::abs(a.strides[dst]) > std::abs(b.strides[dst]);
  });
  for (const Axis& axis : axes) {
    if (!outer_.empty() && merges(outer_.back(), axis)) {
      outer_.back() = {outer_.back().size * axis.size, axis.strides};
    } else {
      outer_.push_back(axis);
    }
  }
  if (!outer_.empty()) {
    inner_ = outer_.back();
    outer_.pop_back();
  }
  rows_ = shape.numel() == 0 ? 0 : shape.numel() / inner_.size;
}

StridedLoop StridedLoop::without(size_t axis) const {
  StridedLoop rest = *this;
  rest.rows_ /= std::max<int64_t>(outer_[axis].size, 1);
  rest.outer_.erase(rest.outer_.begin() + static_cast<std::ptrdiff_t>(axis));
  return rest;
}

void StridedLoop::seek(int64_t row, std::array<int64_t, kMaxLoopAxes>& index,
                       Offsets& offsets) const {
  if (rows_ == 0) return;
  for (size_t axis = outer_.size(); axis-- > 0;) {
    index[axis] = row % outer_[axis].size;
    row /= outer_[axis].size;
    for (size_t k = 0; k < kMaxOperands; ++k) offsets[k] += index[axis] * outer_[axis].strides[k];
  }
}

}  // namespace ofsdp::kernels
