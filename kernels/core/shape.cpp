#include "kernels/core/shape.h"

#include <algorithm>

#include "kernels/base/budgets.h"

namespace ofsdp::kernels {

int64_t Shape::numel(int begin, int end) const {
  int64_t product = 1;
  for (int axis = begin; axis < end; ++axis) product *= (*this)[axis];
  return product;
}

std::string Shape::text() const { return format_text("[{}]", joined(axes_, ", ")); }

Result<int> normalize_axis(int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) {
    return input_error("axis {} is outside -{}..{}", axis, rank, rank - 1);
  }
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

Result<int64_t> checked_numel(const std::vector<int64_t>& axes) {
  constexpr int64_t kMax = int64_t{1} << 59;  // 8-byte elements of that many are 2^62 bytes
  if (axes.size() > static_cast<size_t>(kMaxAxes)) {
    return input_error("expected at most {} axes, found {}", kMaxAxes, axes.size());
  }
  int64_t product = 1;
  bool empty = false;
  for (int64_t axis : axes) {
    if (axis < 0) return input_error("axis {} of [{}] is negative", axis, joined(axes, ", "));
    empty = empty || axis == 0;
    if (axis == 0) continue;  // the product of the others counts: parts of a shape have one too
    if (product > kMax / axis) return input_error("dimensions [{}] overflow", joined(axes, ", "));
    product *= axis;
  }
  return empty ? 0 : product;
}

Result<Shape> broadcast(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::vector<int64_t> axes(static_cast<size_t>(rank), 1);
  for (int i = 1; i <= rank; ++i) {
    const int64_t x = i <= a.rank() ? a[a.rank() - i] : 1;
    const int64_t y = i <= b.rank() ? b[b.rank() - i] : 1;
    if (x != y && x != 1 && y != 1) {
      return input_error("shapes {} and {} do not broadcast", a.text(), b.text());
    }
    axes[static_cast<size_t>(rank - i)] = x == 1 ? y : x;
  }
  return Shape(std::move(axes));
}

}  // namespace ofsdp::kernels
