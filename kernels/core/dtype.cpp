#include "kernels/core/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/base/status.h"
#include "kernels/core/kernel.h"

namespace ofsdp::kernels {

namespace {

struct Entry {
  std::string_view name;
  size_t size;
  int64_t onnx;  // in TensorProto.DataType
};

constexpr std::array<Entry, kDTypes> kEntries = {
    {{"undefined", 0, 0},       {"float32", 4, 1},     {"float64", 8, 11},
     {"float16", 2, 10},        {"bfloat16", 2, 16},   {"int8", 1, 3},
     {"int16", 2, 5},           {"int32", 4, 6},       {"int64", 8, 7},
     {"uint8", 1, 2},           {"uint16", 2, 4},      {"uint32", 4, 12},
     {"uint64", 8, 13},         {"bool", 1, 9},        {"float8e4m3fn", 1, 17},
     {"float8e4m3fnuz", 1, 18}, {"float8e5m2", 1, 19}, {"float8e5m2fnuz", 1, 20},
     {"float8e8m0", 1, 24},     {"float4e2m1", 1, 23}, {"int4", 1, 22},
     {"uint4", 1, 21},          {"int2", 1, 26},       {"uint2", 1, 25}}};

// Codes that are not numbers: none; infinities and NaN as in IEEE 754; NaN if all bits but the sign
// are 1; NaN in place of -0.
enum class Specials : uint8_t { kNone, kIeee, kAllOnes, kMinusZero };

struct NarrowType {
  DType dtype;
  int bits;
  bool has_sign;
  int mantissa;  // bits; -1: an integer
  int bias;      // exponent bias
  Specials specials;
};

constexpr NarrowType kNarrowTypes[] = {
    {DType::kFloat8E4M3FN, 8, true, 3, 7, Specials::kAllOnes},
    {DType::kFloat8E4M3FNUZ, 8, true, 3, 8, Specials::kMinusZero},
    {DType::kFloat8E5M2, 8, true, 2, 15, Specials::kIeee},
    {DType::kFloat8E5M2FNUZ, 8, true, 2, 16, Specials::kMinusZero},
    {DType::kFloat8E8M0, 8, false, 0, 127, Specials::kAllOnes},
    {DType::kFloat4E2M1, 4, true, 1, 1, Specials::kNone},
    {DType::kInt4, 4, true, -1, 0, Specials::kNone},
    {DType::kUInt4, 4, false, -1, 0, Specials::kNone},
    {DType::kInt2, 2, true, -1, 0, Specials::kNone},
    {DType::kUInt2, 2, false, -1, 0, Specials::kNone}};

const NarrowType& type_of(DType dtype) {
  const auto* found = std::ranges::find(kNarrowTypes, dtype, &NarrowType::dtype);
  OFSDP_CHECK(found != std::end(kNarrowTypes), "{} is no narrow type", dtype_name(dtype));
  return *found;
}

uint8_t mask_of(int bits) { return static_cast<uint8_t>((1 << bits) - 1); }

uint8_t sign_bit(const NarrowType& t) { return static_cast<uint8_t>(1 << (t.bits - 1)); }

// Returns the largest finite value's code, without sign.
uint8_t largest_code(const NarrowType& t) {
  const uint8_t all = mask_of(t.has_sign ? t.bits - 1 : t.bits);
  if (t.specials == Specials::kAllOnes) return all - 1;
  if (t.specials == Specials::kIeee) return all - static_cast<uint8_t>(1 << t.mantissa);
  return all;
}

// With m mantissa bits and exponent e: (1 + m / 2^bits) 2^(e - bias), without the 1 if e = 0.
// float8e8m0 has neither mantissa nor 0.
float magnitude(const NarrowType& t, uint8_t code) {
  const int exponent = code >> t.mantissa, fraction = code & mask_of(t.mantissa);
  const bool normal = exponent != 0 || !t.has_sign;
  const int whole = fraction + (normal ? 1 << t.mantissa : 0);
  return std::ldexp(static_cast<float>(whole),
                    std::max(exponent, normal ? 0 : 1) - t.bias - t.mantissa);
}

uint8_t integer_code(const NarrowType& t, double value) {
  if (!(std::abs(value) < 0x1p62)) return 0;
  return static_cast<uint8_t>(static_cast<int64_t>(value)) & mask_of(t.bits);
}

// Returns NaN with the sign of `value`.
uint8_t nan_code(const NarrowType& t, double value) {
  if (t.specials == Specials::kMinusZero) return sign_bit(t);
  const auto sign = static_cast<uint8_t>(t.has_sign && std::signbit(value) ? sign_bit(t) : 0);
  if (t.specials == Specials::kNone) return static_cast<uint8_t>(sign ^ sign_bit(t));  // 0
  const uint8_t all = mask_of(t.has_sign ? t.bits - 1 : t.bits);
  return sign | (t.specials == Specials::kIeee ? static_cast<uint8_t>(all - 1) : all);
}

// float8e8m0: float32's exponent, plus a rounding of the rest.
uint8_t power_code(float value, NarrowRounding rounding) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t exponent = bits >> 23 & 0xFF, rest = bits & 0x7FFFFF;
  if (std::isnan(value)) return 0xFF;
  if (exponent == 0xFF) return rounding.saturate ? 0xFE : 0xFF;
  if (value == 0 && rounding.mode == NarrowRounding::Mode::kNearest && !rounding.saturate) {
    return 0xFF;
  }
  using Mode = NarrowRounding::Mode;
  const bool up = rounding.mode == Mode::kUp ? rest > 0
                  : rounding.mode == Mode::kNearest
                      ? rest > 0x400000 || (rest == 0x400000 && exponent > 0)
                      : false;
  return static_cast<uint8_t>(std::min(exponent + (up ? 1 : 0), rounding.saturate ? 0xFEu : 0xFFu));
}

// Returns the code nearest to |value| as if exponents had no end, or more than 255.
int64_t rounded_code(const NarrowType& t, double value) {
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);                          // |value| = f 2^exponent, f in [0.5, 1)
  const int place = std::max(exponent - 1, 1 - t.bias);  // subnormals share the least exponent
  if (place > 64) return 256;
  const double steps = std::nearbyint(std::ldexp(std::abs(value), t.mantissa - place));
  return static_cast<int64_t>(steps) + (static_cast<int64_t>(place + t.bias - 1) << t.mantissa);
}

}  // namespace

size_t dtype_size(DType dtype) { return kEntries[static_cast<size_t>(dtype)].size; }

std::string_view dtype_name(DType dtype) { return kEntries[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 1; i < kEntries.size(); ++i) {
    if (kEntries[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

int64_t onnx_number(DType dtype) { return kEntries[static_cast<size_t>(dtype)].onnx; }

DType dtype_from_onnx_number(int64_t number) {
  for (size_t i = 1; i < kEntries.size(); ++i) {
    if (kEntries[i].onnx == number) return static_cast<DType>(i);
  }
  return DType::kUndefined;
}

bool is_floating(DType dtype) { return dtype >= DType::kFloat32 && dtype <= DType::kBFloat16; }

bool is_integer(DType dtype) { return dtype >= DType::kInt8 && dtype <= DType::kUInt64; }

NarrowRounding narrow_rounding(const Attributes& attributes) {
  const std::string mode = attributes.s("round_mode", "up");
  using Mode = NarrowRounding::Mode;
  return {attributes.i("saturate", 1) != 0, mode == "down"      ? Mode::kDown
                                            : mode == "nearest" ? Mode::kNearest
                                                                : Mode::kUp};
}

int narrow_bits(DType dtype) { return type_of(dtype).bits; }

bool is_narrow_integer(DType dtype) { return type_of(dtype).mantissa < 0; }

float narrow_value(DType dtype, uint8_t code) {
  const NarrowType& t = type_of(dtype);
  const bool negative = t.has_sign && (code & sign_bit(t)) != 0;
  if (t.mantissa < 0) return static_cast<float>(negative ? code - (1 << t.bits) : code);
  const auto size = static_cast<uint8_t>(negative ? code & ~sign_bit(t) : code);
  if (t.specials == Specials::kMinusZero && negative && size == 0)
    return std::numeric_limits<float>::quiet_NaN();
  if (size > largest_code(t)) {
    const bool infinite = t.specials == Specials::kIeee && size == largest_code(t) + 1;
    const float special =
        infinite ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    return negative ? -special : special;
  }
  return negative ? -magnitude(t, size) : magnitude(t, size);
}

uint8_t narrow_code(DType dtype, double value, NarrowRounding rounding) {
  const NarrowType& t = type_of(dtype);
  if (t.mantissa < 0) return integer_code(t, value);
  if (dtype == DType::kFloat8E8M0) return power_code(static_cast<float>(value), rounding);
  if (std::isnan(value)) return nan_code(t, value);
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? sign_bit(t) : 0);
  const int64_t code = std::isinf(value) ? 256 : rounded_code(t, value);
  if (code == 0 && t.specials == Specials::kMinusZero) return 0;
  if (code <= largest_code(t)) return sign | static_cast<uint8_t>(code);
  if (rounding.saturate || t.specials == Specials::kNone) return sign | largest_code(t);
  if (t.specials == Specials::kIeee) return sign | static_cast<uint8_t>(largest_code(t) + 1);
  return nan_code(t, value);
}

std::vector<std::byte> packed_codes(DType dtype, const std::byte* codes, int64_t count) {
  const int bits = narrow_bits(dtype), each = 8 / bits;
  std::vector<std::byte> bytes(static_cast<size_t>((count + each - 1) / each));
  for (int64_t i = 0; i < count; ++i) {
    bytes[static_cast<size_t>(i / each)] |= codes[i] << static_cast<int>(i % each * bits);
  }
  return bytes;
}

std::vector<std::byte> unpacked_codes(DType dtype, const std::vector<std::byte>& bytes,
                                      int64_t count) {
  const int bits = narrow_bits(dtype), each = 8 / bits;
  if (static_cast<int64_t>(bytes.size()) != (count + each - 1) / each) return {};
  std::vector<std::byte> codes(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    codes[static_cast<size_t>(i)] =
        bytes[static_cast<size_t>(i / each)] >> static_cast<int>(i % each * bits) &
        std::byte{mask_of(bits)};
  }
  return codes;
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

}  // namespace ofsdp::kernels
