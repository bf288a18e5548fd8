// A tensor as kernels see it: the type (TensorDesc), a view of the bytes (TensorView) and, if
// planning knows the values, the bytes themselves (Constant).
//
// A tensor is dense. `layout` is the byte order; `shape` is always the logical ONNX shape. kPlain
// is row-major. kChannelsLast stores logical [N, C, spatial...] as N, spatial..., C, in which
// convolutions and poolings run faster; the planner chooses it and nothing else sees it.
//
// One exception: if a plain tensor has a `pitch`, rows (along the last axis) begin that many
// elements apart, with undefined elements between. Only devices have such tensors, and only kernels
// that say so take them (importer/passes/joined_nodes.h, pitch_rows).
//
// TensorView never owns; graphs share Constants. Descs and constants never change once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"

namespace ofsdp::kernels {

// A tensor's axes, outermost first, all known (symbolic axes are bound before; see
// importer/graph/graph.h). Rank 0 is a scalar with one element; an axis may be 0.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> axes) : axes_(axes) {}
  explicit Shape(std::vector<int64_t> axes) : axes_(std::move(axes)) {}

  int rank() const { return static_cast<int>(axes_.size()); }
  int64_t operator[](int axis) const { return axes_[static_cast<size_t>(axis)]; }
  int64_t& operator[](int axis) { return axes_[static_cast<size_t>(axis)]; }
  const std::vector<int64_t>& axes() const& { return axes_; }
  std::vector<int64_t> axes() && { return std::move(axes_); }  // moves out of a temporary
  int64_t numel() const { return numel(0, rank()); }
  int64_t numel(int begin, int end) const;  // product of axes begin .. end-1
  bool operator==(const Shape&) const = default;
  std::string text() const;  // "[8, 128]"

 private:
  std::vector<int64_t> axes_;
};

// Returns the axis as a number from 0; a negative `axis` counts from the end, as in ONNX's `axis`
// attributes. Returns kInput with the range if it is outside.
Result<int> normalize_axis(int64_t axis, int rank);

// Returns the product of the axes, or an error if an axis is negative, the bytes could pass 2^62 or
// there are more than kMaxAxes.
Result<int64_t> checked_numel(const std::vector<int64_t>& axes);

// ONNX's multidirectional broadcasting.
Result<Shape> broadcast(const Shape& a, const Shape& b);

enum class Layout : uint8_t { kPlain, kChannelsLast };

struct TensorDesc {
  DType dtype = DType::kUndefined;  // kUndefined: an absent optional operand
  Shape shape;
  Layout layout = Layout::kPlain;
  int64_t pitch = 0;  // elements between row starts; 0: dense

  bool present() const { return dtype != DType::kUndefined; }
  int64_t numel() const { return shape.numel(); }
  int64_t row() const { return shape.rank() == 0 ? 1 : shape[shape.rank() - 1]; }
  int64_t extent() const { return pitch == 0 ? numel() : numel() / row() * pitch; }  // in memory
  size_t bytes() const { return static_cast<size_t>(extent()) * dtype_size(dtype); }
  TensorDesc dense() const { return {dtype, shape, layout}; }
  bool operator==(const TensorDesc&) const = default;
  std::string text() const;  // "float32[8, 100]"; channels last ".../cl", pitch 128 ".../128"
};

struct TensorView {
  std::byte* data = nullptr;  // 64-byte aligned; null if absent
  TensorDesc desc;

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

struct Constant {
  TensorDesc desc;
  std::vector<std::byte> bytes;

  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};
using ConstantPtr = std::shared_ptr<const Constant>;

template <typename T>
ConstantPtr make_constant(DType dtype, Shape shape, std::span<const T> values) {
  Constant constant{{dtype, std::move(shape)}, std::vector<std::byte>(values.size_bytes())};
  if (!values.empty()) std::memcpy(constant.bytes.data(), values.data(), values.size_bytes());
  return std::make_shared<const Constant>(std::move(constant));
}

// Returns an error if no machine could hold the tensor: kMaxAxes, kMaxTensorBytes.
Status check_size(const TensorDesc& desc);

// Returns the elements of an integer constant (int32 or int64).
Result<std::vector<int64_t>> int_values(const Constant& constant);

// Converts elements between any dtype and double, for reference implementations and tests.
std::vector<double> to_doubles(const TensorDesc& desc, const std::byte* data);
double double_at(const TensorView& view, int64_t i);
double first_double(const Constant& constant);
void from_doubles(std::span<const double> values, const TensorDesc& desc, std::byte* data);

}  // namespace ofsdp::kernels
