// Element types. Numbers are little-endian and bool is one byte, 0 or 1, as in ONNX's raw_data.
// float16 and bfloat16 (IEEE 754 binary16; a binary32's upper half) are storage types: arithmetic
// runs in float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/namespaces.h"

namespace ofsdp::kernels {

class Attributes;

enum class DType : uint8_t {
  kUndefined,
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
  kFloat8E4M3FN,  // this and all later ones are narrow types, see below
  kFloat8E4M3FNUZ,
  kFloat8E5M2,
  kFloat8E5M2FNUZ,
  kFloat8E8M0,
  kFloat4E2M1,
  kInt4,
  kUInt4,
  kInt2,
  kUInt2,
};
inline constexpr size_t kDTypes = static_cast<size_t>(DType::kUInt2) + 1;

size_t dtype_size(DType dtype);            // bytes per element in memory; 0 for kUndefined
std::string_view dtype_name(DType dtype);  // "float32", ...
std::optional<DType> dtype_from_name(std::string_view name);
int64_t onnx_number(DType dtype);              // in onnx.proto's TensorProto.DataType
DType dtype_from_onnx_number(int64_t number);  // kUndefined if unknown
bool is_floating(DType dtype);
bool is_integer(DType dtype);  // signed and unsigned, not bool
constexpr bool is_narrow(DType dtype) { return dtype > DType::kBool; }
constexpr bool is_16_bit_float(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}
constexpr bool is_32_or_16_bit_float(DType dtype) {
  return dtype == DType::kFloat32 || is_16_bit_float(dtype);
}

// Narrow types have at most 8 bits and are not int8, uint8 or bool: ONNX's float8, float4, int4,
// uint4, int2 and uint2. In memory each element is a byte with the code in the low bits; only
// TensorProto packs 2 or 4 elements into a byte. Cast, QuantizeLinear and DequantizeLinear compute
// with them; operators that move elements treat them as bytes.
//
// REQUIRES: is_narrow(dtype).
// https://onnx.ai/onnx/technical/float8.html, https://onnx.ai/onnx/operators/onnx__Cast.html

// Attributes on Cast and QuantizeLinear: `saturate`, whether a value beyond the largest becomes the
// largest (else infinity or NaN); `mode`, how float8e8m0 rounds.
struct NarrowRounding {
  enum class Mode : uint8_t { kUp, kDown, kNearest };
  bool saturate = true;
  Mode mode = Mode::kUp;
};
NarrowRounding narrow_rounding(const Attributes& attributes);

int narrow_bits(DType dtype);         // bits in a code
bool is_narrow_integer(DType dtype);  // int4, uint4, int2, uint2
float narrow_value(DType dtype, uint8_t code);

// Rounds to nearest, ties to even. Integers truncate towards 0 and keep their low bits; NaN becomes
// 0 in types without NaN.
uint8_t narrow_code(DType dtype, double value, NarrowRounding rounding = {});

// Packs and unpacks codes as TensorProto.raw_data has them, low bits first. unpacked_codes returns
// none if `bytes` has the wrong size.
std::vector<std::byte> packed_codes(DType dtype, const std::byte* codes, int64_t count);
std::vector<std::byte> unpacked_codes(DType dtype, const std::vector<std::byte>& bytes,
                                      int64_t count);

// IEEE binary16 and bfloat16; rounds to nearest, ties to even.
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bfloat16_to_float(uint16_t bits);
uint16_t float_to_bfloat16(float value);

}  // namespace ofsdp::kernels
