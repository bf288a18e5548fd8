// Element types of at most 8 bits other than int8, uint8 and bool: ONNX's float8, float4, int4,
// uint4, int2 and uint2. In memory an element is a byte with the code in the lower bits. Only
// TensorProto packs 2 or 4 of them into one.
//
// Cast, QuantizeLinear and DequantizeLinear compute with these types; operators that move elements
// take them as bytes.
//
// REQUIRES: is_narrow(dtype).
// https://onnx.ai/onnx/technical/float8.html, https://onnx.ai/onnx/operators/onnx__Cast.html
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/attributes.h"
#include "kernels/core/dtype.h"

namespace ofsdp::kernels {

// The attributes of Cast and QuantizeLinear: whether a value beyond the largest becomes the largest
// (else infinity, or NaN), and how float8e8m0 rounds.
struct NarrowRounding {
  enum class Mode : uint8_t { kUp, kDown, kNearest };
  bool saturate = true;
  Mode mode = Mode::kUp;
};
NarrowRounding narrow_rounding(const Attributes& attributes);

int narrow_bits(DType dtype);         // of a code
bool is_narrow_integer(DType dtype);  // int4, uint4, int2, uint2
float narrow_value(DType dtype, uint8_t code);

// Rounds to the nearest value, to even at ties. Integers are cut towards 0 and keep their lower
// bits; NaN becomes 0 in types that have none.
uint8_t narrow_code(DType dtype, double value, NarrowRounding rounding = {});

// Codes to and from the bytes of TensorProto.raw_data, lower bits first. `bytes` may be too short:
// then the result is empty.
std::vector<std::byte> packed_codes(DType dtype, const std::byte* codes, int64_t count);
std::vector<std::byte> unpacked_codes(DType dtype, const std::vector<std::byte>& bytes,
                                      int64_t count);

}  // namespace ofsdp::kernels
