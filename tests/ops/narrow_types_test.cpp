// The narrow types against the tables in the ONNX text and against the nearest value.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/core/dtype.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace narrow_types_test {

constexpr DType kFloats[] = {DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2,
                             DType::kFloat8E5M2FNUZ, DType::kFloat4E2M1};
constexpr NarrowRounding kNoLimit{.saturate = false};

// https://onnx.ai/onnx/technical/float8.html: the text's codes, and their values.
TEST(NarrowTypes, CodesHaveTheValuesOfTheText) {
  EXPECT_EQ(narrow_value(DType::kFloat8E4M3FN, 0x7E), 448);
  EXPECT_EQ(narrow_value(DType::kFloat8E4M3FN, 0x08), 0x1p-6f);
  EXPECT_EQ(narrow_value(DType::kFloat8E4M3FN, 0x01), 0x1p-9f);
  EXPECT_EQ(narrow_value(DType::kFloat8E4M3FNUZ, 0x7F), 240);
  EXPECT_EQ(narrow_value(DType::kFloat8E4M3FNUZ, 0x01), 0x1p-10f);
  EXPECT_EQ(narrow_value(DType::kFloat8E5M2, 0x7B), 57344);
  EXPECT_EQ(narrow_value(DType::kFloat8E5M2, 0x01), 0x1p-16f);
  EXPECT_EQ(narrow_value(DType::kFloat8E5M2, 0xFC), -INFINITY);
  EXPECT_EQ(narrow_value(DType::kFloat8E5M2FNUZ, 0x7F), 57344);
  EXPECT_EQ(narrow_value(DType::kFloat8E5M2FNUZ, 0x01), 0x1p-17f);
  EXPECT_EQ(narrow_value(DType::kFloat8E8M0, 0), 0x1p-127f);
  EXPECT_EQ(narrow_value(DType::kFloat8E8M0, 0xFE), 0x1p127f);
  const std::vector<float> halves{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(narrow_value(DType::kFloat4E2M1, code), halves[code]);
    EXPECT_EQ(narrow_value(DType::kFloat4E2M1, code | 8), -halves[code]);
  }
  EXPECT_TRUE(std::isnan(narrow_value(DType::kFloat8E4M3FN, 0xFF)));
  EXPECT_TRUE(std::isnan(narrow_value(DType::kFloat8E4M3FNUZ, 0x80)));
  EXPECT_TRUE(std::isnan(narrow_value(DType::kFloat8E5M2, 0x7D)));
  EXPECT_TRUE(std::isnan(narrow_value(DType::kFloat8E8M0, 0xFF)));
  EXPECT_EQ(narrow_value(DType::kInt4, 0x8), -8);
  EXPECT_EQ(narrow_value(DType::kUInt4, 0xF), 15);
  EXPECT_EQ(narrow_value(DType::kInt2, 0x3), -1);
  EXPECT_EQ(narrow_value(DType::kUInt2, 0x3), 3);
}

TEST(NarrowTypes, EveryCodeOfANumberComesBack) {
  for (const DType dtype : kFloats) {
    for (int code = 0; code < 1 << narrow_bits(dtype); ++code) {
      const float value = narrow_value(dtype, static_cast<uint8_t>(code));
      if (std::isnan(value)) continue;
      EXPECT_EQ(narrow_code(dtype, value, kNoLimit), code);
    }
  }
}

// The nearest finite value; of two equally near, the one with an even code.
uint8_t nearest(DType dtype, double x) {
  int best = 0;
  for (int code = 0; code < 1 << narrow_bits(dtype); ++code) {
    const double found = narrow_value(dtype, static_cast<uint8_t>(code));
    if (!std::isfinite(found)) continue;
    const double near = std::abs(found - x), before = std::abs(narrow_value(dtype, best) - x);
    if (near < before || (near == before && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best);
}

TEST(NarrowTypes, RoundToTheNearestAndToEven) {
  for (const DType dtype : kFloats) {
    for (int i = -4000; i < 4000; ++i) {
      const double x = i % 2 == 0 ? i / 64.0 : i * 0.00031;
      if (x == 0) continue;
      const float found = narrow_value(dtype, narrow_code(dtype, x));
      EXPECT_EQ(found, narrow_value(dtype, nearest(dtype, x))) << dtype_name(dtype) << " " << x;
    }
  }
}

// The two tables in https://onnx.ai/onnx/operators/onnx__Cast.html.
TEST(NarrowTypes, ValuesBeyondTheLargest) {
  const uint8_t most[] = {0x7E, 0x7F, 0x7B, 0x7F};
  const uint8_t beyond[] = {0x7F, 0x80, 0x7C, 0x80};
  for (size_t i = 0; i < 4; ++i) {
    for (const double x : {1e6, double{INFINITY}}) {
      EXPECT_EQ(narrow_code(kFloats[i], x), most[i]);
      EXPECT_EQ(narrow_code(kFloats[i], -x), most[i] | 0x80);
      EXPECT_EQ(narrow_code(kFloats[i], x, kNoLimit), beyond[i]);
      EXPECT_EQ(narrow_code(kFloats[i], -x, kNoLimit), beyond[i] | 0x80);
    }
    EXPECT_TRUE(std::isnan(narrow_value(kFloats[i], narrow_code(kFloats[i], NAN))));
    EXPECT_EQ(narrow_code(kFloats[i], 0.0), 0);
  }
  EXPECT_EQ(narrow_code(DType::kFloat8E4M3FN, -0.0), 0x80);
  EXPECT_EQ(narrow_code(DType::kFloat8E4M3FNUZ, -0.0), 0);
  EXPECT_EQ(narrow_code(DType::kFloat8E4M3FN, 464, kNoLimit), 0x7E);  // a tie
  EXPECT_EQ(narrow_code(DType::kFloat8E4M3FN, 465, kNoLimit), 0x7F);
  EXPECT_EQ(narrow_code(DType::kFloat4E2M1, 1e6, kNoLimit), 0x7);
}

TEST(NarrowTypes, IntegersKeepTheirLowerBits) {
  EXPECT_EQ(narrow_code(DType::kInt4, -9), 0x7);
  EXPECT_EQ(narrow_code(DType::kUInt4, 17), 0x1);
  EXPECT_EQ(narrow_code(DType::kInt2, -1.7), 0x3);
  EXPECT_EQ(narrow_code(DType::kUInt2, NAN), 0);
}

TEST(NarrowTypes, PowersOfTwo) {
  constexpr auto kE8M0 = DType::kFloat8E8M0;
  using Mode = NarrowRounding::Mode;
  EXPECT_EQ(narrow_code(kE8M0, 1), 127);
  EXPECT_EQ(narrow_code(kE8M0, 1.1), 128);
  EXPECT_EQ(narrow_code(kE8M0, 1.9, {.mode = Mode::kDown}), 127);
  EXPECT_EQ(narrow_code(kE8M0, 1.5, {.mode = Mode::kNearest}), 128);
  EXPECT_EQ(narrow_code(kE8M0, 1.49, {.mode = Mode::kNearest}), 127);
  EXPECT_EQ(narrow_code(kE8M0, INFINITY), 0xFE);
  EXPECT_EQ(narrow_code(kE8M0, INFINITY, kNoLimit), 0xFF);
}

TEST(NarrowTypes, PackLowerBitsFirst) {
  const std::vector<std::byte> codes{std::byte{1}, std::byte{2}, std::byte{3}};
  EXPECT_EQ(packed_codes(DType::kInt4, codes.data(), 3),
            (std::vector<std::byte>{std::byte{0x21}, std::byte{0x03}}));
  EXPECT_EQ(packed_codes(DType::kUInt2, codes.data(), 3),
            (std::vector<std::byte>{std::byte{0x39}}));
  for (const DType dtype : {DType::kInt4, DType::kUInt2, DType::kFloat8E5M2}) {
    EXPECT_EQ(unpacked_codes(dtype, packed_codes(dtype, codes.data(), 3), 3), codes);
  }
  EXPECT_TRUE(unpacked_codes(DType::kInt4, codes, 3).empty());  // a byte too many
}

}  // namespace narrow_types_test
}  // namespace ofsdp
