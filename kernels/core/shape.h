// Shape: the axes of a tensor, outermost first, all known (symbolic axes are bound before a Shape
// is made; see importer/graph/graph.h). Rank 0 is a scalar with one element; an axis of 0 is
// allowed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::kernels {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> axes) : axes_(axes) {}
  explicit Shape(std::vector<int64_t> axes) : axes_(std::move(axes)) {}

  int rank() const { return static_cast<int>(axes_.size()); }
  int64_t operator[](int axis) const { return axes_[static_cast<size_t>(axis)]; }
  int64_t& operator[](int axis) { return axes_[static_cast<size_t>(axis)]; }
  const std::vector<int64_t>& axes() const& { return axes_; }
  std::vector<int64_t> axes() && { return std::move(axes_); }  // moved out of a temporary
  int64_t numel() const { return numel(0, rank()); }
  int64_t numel(int begin, int end) const;  // product of axes begin .. end-1
  bool operator==(const Shape&) const = default;
  std::string text() const;  // "[8, 128]"

 private:
  std::vector<int64_t> axes_;
};

// Returns an axis that counts from the end if negative, as ONNX's `axis` attributes do; the error
// names the range.
Result<int> normalize_axis(int64_t axis, int rank);

// Returns the product of the axes, or an error if one is negative, the product of bytes passes 2^62
// or there are more than kMaxAxes.
Result<int64_t> checked_numel(const std::vector<int64_t>& axes);

// ONNX's multidirectional broadcasting.
Result<Shape> broadcast(const Shape& a, const Shape& b);

}  // namespace ofsdp::kernels
