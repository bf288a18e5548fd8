#include "importer/file/element_codec.h"

#include <cstring>

#include "kernels/base/status.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {
namespace {

template <typename T, typename F>
void decode_as(const std::byte* src, int64_t stride, std::span<float> dst, F convert) {
  for (float& value : dst) {
    T stored;
    std::memcpy(&stored, src, sizeof(T));  // files align nothing
    value = convert(stored);
    src += stride;
  }
}

template <typename T, typename F>
void encode_as(std::span<const float> src, int64_t stride, std::byte* dst, F convert) {
  for (const float value : src) {
    const T stored = convert(value);
    std::memcpy(dst, &stored, sizeof(T));
    dst += stride;
  }
}

}  // namespace

void decode_floats(DType dtype, const std::byte* src, int64_t stride, std::span<float> dst) {
  switch (dtype) {
    case DType::kFloat32:
      return decode_as<float>(src, stride, dst, [](float v) { return v; });
    case DType::kFloat64:
      return decode_as<double>(src, stride, dst, [](double v) { return static_cast<float>(v); });
    case DType::kFloat16:
      return decode_as<uint16_t>(src, stride, dst, half_to_float);
    case DType::kBFloat16:
      return decode_as<uint16_t>(src, stride, dst, bfloat16_to_float);
    default:
      OFSDP_CHECK(false, "{} is no floating type", dtype_name(dtype));
  }
}

void encode_floats(DType dtype, std::span<const float> src, int64_t stride, std::byte* dst) {
  switch (dtype) {
    case DType::kFloat32:
      return encode_as<float>(src, stride, dst, [](float v) { return v; });
    case DType::kFloat64:
      return encode_as<double>(src, stride, dst, [](float v) { return v; });
    case DType::kFloat16:
      return encode_as<uint16_t>(src, stride, dst, float_to_half);
    case DType::kBFloat16:
      return encode_as<uint16_t>(src, stride, dst, float_to_bfloat16);
    default:
      OFSDP_CHECK(false, "{} is no floating type", dtype_name(dtype));
  }
}

}  // namespace ofsdp::importer
