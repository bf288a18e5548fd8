#include "kernels/core/tensor.h"

#include <algorithm>

#include "kernels/base/budgets.h"
#include "kernels/core/element_types.h"

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
  constexpr int64_t kMax = int64_t{1} << 59;  // 8-byte elements: 2^62 bytes
  if (axes.size() > static_cast<size_t>(kMaxAxes)) {
    return input_error("expected at most {} axes, found {}", kMaxAxes, axes.size());
  }
  int64_t product = 1;
  bool empty = false;
  for (int64_t axis : axes) {
    if (axis < 0) return input_error("axis {} of [{}] is negative", axis, joined(axes, ", "));
    empty = empty || axis == 0;
    if (axis == 0) continue;  // the other axes count: parts of a shape have a product too
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

std::string TensorDesc::text() const {
  if (!present()) return "absent";
  std::string text = std::string(dtype_name(dtype)) + shape.text();
  if (layout == Layout::kChannelsLast) text += "/cl";
  if (pitch != 0) text += format_text("/{}", pitch);
  return text;
}

Status check_size(const TensorDesc& desc) {
  OFSDP_ASSIGN_OR_RETURN(const int64_t numel, checked_numel(desc.shape.axes()));
  const int64_t bytes = numel * static_cast<int64_t>(dtype_size(desc.dtype));
  OFSDP_REJECT_IF(bytes > kMaxTensorBytes, "expected at most {} bytes, found {} of {}",
                  kMaxTensorBytes, bytes, desc.text());
  return ok_status();
}

Result<std::vector<int64_t>> int_values(const Constant& constant) {
  if (constant.desc.dtype == DType::kInt64) {
    const auto values = constant.as<int64_t>();
    return std::vector<int64_t>(values.begin(), values.end());
  }
  if (constant.desc.dtype == DType::kInt32) {
    const auto values = constant.as<int32_t>();
    return std::vector<int64_t>(values.begin(), values.end());
  }
  return input_error("expected int64 or int32 values, found {}", dtype_name(constant.desc.dtype));
}

std::vector<double> to_doubles(const TensorDesc& desc, const std::byte* data) {
  std::vector<double> values(static_cast<size_t>(desc.numel()));
  if (is_16_bit_float(desc.dtype)) {
    const auto* bits = reinterpret_cast<const uint16_t*>(data);
    const bool half = desc.dtype == DType::kFloat16;
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = half ? half_to_float(bits[i]) : bfloat16_to_float(bits[i]);
    }
    return values;
  }
  if (is_narrow(desc.dtype)) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = narrow_value(desc.dtype, std::to_integer<uint8_t>(data[i]));
    }
    return values;
  }
  with_number(desc.dtype, [&](auto zero) {
    const auto* source = reinterpret_cast<const decltype(zero)*>(data);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(source[i]);
  });
  return values;
}

double double_at(const TensorView& view, int64_t i) {
  if (view.desc.dtype == DType::kFloat16) return half_to_float(view.as<const uint16_t>()[i]);
  if (view.desc.dtype == DType::kBFloat16) return bfloat16_to_float(view.as<const uint16_t>()[i]);
  if (is_narrow(view.desc.dtype)) return narrow_value(view.desc.dtype, view.as<const uint8_t>()[i]);
  return with_number(view.desc.dtype,
                     [&]<typename T>(T) { return static_cast<double>(view.as<const T>()[i]); });
}

double first_double(const Constant& constant) {
  return to_doubles(constant.desc, constant.bytes.data())[0];
}

void from_doubles(std::span<const double> values, const TensorDesc& desc, std::byte* data) {
  if (is_16_bit_float(desc.dtype)) {
    auto* bits = reinterpret_cast<uint16_t*>(data);
    const bool half = desc.dtype == DType::kFloat16;
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(values[i]);
      bits[i] = half ? float_to_half(value) : float_to_bfloat16(value);
    }
    return;
  }
  if (is_narrow(desc.dtype)) {
    for (size_t i = 0; i < values.size(); ++i) {
      data[i] = std::byte{narrow_code(desc.dtype, values[i], {.saturate = false})};
    }
    return;
  }
  with_number(desc.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* target = reinterpret_cast<T*>(data);
    for (size_t i = 0; i < values.size(); ++i) target[i] = static_cast<T>(values[i]);
  });
}

}  // namespace ofsdp::kernels
