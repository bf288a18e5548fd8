#include "kernels/core/tensor.h"

#include <algorithm>
#include <bit>

#include "kernels/base/budgets.h"
#include "kernels/base/reject.h"
#include "kernels/core/attributes.h"
#include "kernels/core/element_types.h"
#include "kernels/core/kernel.h"
#include "kernels/core/narrow_types.h"

namespace ofsdp::kernels {
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

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float value = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal
  return sign != 0 ? -value : value;
}

uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds past the largest: infinity
  if (magnitude < 0x38800000u) {                        // subnormal: let float addition round
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) - 0x3f000000u);
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return sign | static_cast<uint16_t>((magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}

float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

bool Problem::all_plain() const {
  auto plain = [](const TensorDesc& d) { return d.layout == Layout::kPlain; };
  return std::ranges::all_of(inputs, plain) && std::ranges::all_of(outputs, plain);
}

bool Problem::all_dense() const {
  auto dense = [](const TensorDesc& d) { return d.pitch == 0; };
  return std::ranges::all_of(inputs, dense) && std::ranges::all_of(outputs, dense);
}

bool Problem::all_dtype(DType dtype) const {
  auto same = [&](const TensorDesc& d) { return !d.present() || d.dtype == dtype; };
  return std::ranges::all_of(inputs, same) && std::ranges::all_of(outputs, same);
}

}  // namespace ofsdp::kernels
