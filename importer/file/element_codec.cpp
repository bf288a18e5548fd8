#include "importer/file/element_codec.h"

#include <cstring>

#include "kernels/base/status.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {
namespace {

// Calls work(T{}, decode, encode) for the stored type T of `dtype`.
template <typename F>
void with_codec(DType dtype, const F& work) {
  const auto same = [](float v) { return v; };
  const auto narrow = [](double v) { return static_cast<float>(v); };
  if (dtype == DType::kFloat32) return work(float{}, same, same);
  if (dtype == DType::kFloat64) return work(double{}, narrow, same);
  if (dtype == DType::kFloat16) return work(uint16_t{}, half_to_float, float_to_half);
  if (dtype == DType::kBFloat16) return work(uint16_t{}, bfloat16_to_float, float_to_bfloat16);
  OFSDP_CHECK(false, "{} is no floating type", dtype_name(dtype));
}

}  // namespace

// Files align nothing, so elements are copied.
void decode_floats(DType dtype, const std::byte* src, int64_t stride, std::span<float> dst) {
  with_codec(dtype, [&](auto stored, auto decode, auto) {
    for (float& value : dst) {
      std::memcpy(&stored, src, sizeof stored);
      value = decode(stored);
      src += stride;
    }
  });
}

void encode_floats(DType dtype, std::span<const float> src, int64_t stride, std::byte* dst) {
  with_codec(dtype, [&](auto stored, auto, auto encode) {
    for (const float value : src) {
      stored = encode(value);
      std::memcpy(dst, &stored, sizeof stored);
      dst += stride;
    }
  });
}

}  // namespace ofsdp::importer
