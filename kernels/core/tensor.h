// A tensor as kernels see it: its type (TensorDesc), a view of its bytes (TensorView), and, for
// values known while planning, the bytes themselves (Constant).
//
// A tensor is dense. `layout` is the order of its bytes; `shape` is always the logical ONNX shape.
// kPlain is row-major. kChannelsLast stores logical [N, C, spatial...] as N, spatial..., C, in
// which convolutions and poolings run faster; the planner chooses it and nothing else sees it.
//
// One exception: the rows (along the last axis) of a plain tensor with a `pitch` begin that many
// elements apart. The elements between rows are undefined. Devices alone have such tensors, and
// only kernels that say so take them (importer/passes/passes.h, pitch_rows).
//
// TensorView never owns; Constant owns the bytes and is shared between graphs. Descs and constants
// are immutable once made.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/shape.h"

namespace ofsdp::kernels {

enum class Layout : uint8_t { kPlain, kChannelsLast };

struct TensorDesc {
  DType dtype = DType::kUndefined;  // kUndefined: an optional input or output that is absent
  Shape shape;
  Layout layout = Layout::kPlain;
  int64_t pitch = 0;  // elements from a row to the next; 0: dense

  bool present() const { return dtype != DType::kUndefined; }
  int64_t numel() const { return shape.numel(); }
  int64_t row() const { return shape.rank() == 0 ? 1 : shape[shape.rank() - 1]; }
  int64_t extent() const { return pitch == 0 ? numel() : numel() / row() * pitch; }  // in memory
  size_t bytes() const { return static_cast<size_t>(extent()) * dtype_size(dtype); }
  TensorDesc dense() const { return {dtype, shape, layout}; }
  bool operator==(const TensorDesc&) const = default;
  std::string text() const;  // "float32[8, 100]"; channels last ".../cl", in rows of 128 ".../128"
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

// An error unless the desc is of a tensor that a machine could hold: kMaxAxes, kMaxTensorBytes.
Status check_size(const TensorDesc& desc);

// The elements of an integer constant (int32 or int64) as int64.
Result<std::vector<int64_t>> int_values(const Constant& constant);

// Elements of any dtype from and to double, for reference implementations and tests.
std::vector<double> to_doubles(const TensorDesc& desc, const std::byte* data);
double double_at(const TensorView& view, int64_t i);
double first_double(const Constant& constant);
void from_doubles(std::span<const double> values, const TensorDesc& desc, std::byte* data);

// IEEE binary16 and bfloat16, rounded to nearest even.
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bfloat16_to_float(uint16_t bits);
uint16_t float_to_bfloat16(float value);

}  // namespace ofsdp::kernels
