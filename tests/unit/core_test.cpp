// kernels/core: shapes, 16-bit floats, Philox, attributes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "kernels/core/kernel.h"
#include "kernels/core/philox.h"
#include "kernels/core/tensor.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace core_test {

using ::testing::HasSubstr;

std::string broadcast_text(const Shape& a, const Shape& b) {
  const auto shape = broadcast(a, b);
  return shape.ok() ? shape->text() : "error: " + shape.error().message();
}

TEST(ShapeTest, CountsElements) {
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ((Shape{2, 3, 4}).numel(), 24);
  EXPECT_EQ((Shape{2, 0, 4}).numel(), 0);
  EXPECT_EQ((Shape{2, 3, 4}).numel(1, 3), 12);
  EXPECT_EQ((Shape{8, 128}).text(), "[8, 128]");
}

TEST(ShapeTest, NormalizesAxes) {
  EXPECT_EQ(*normalize_axis(1, 3), 1);
  EXPECT_EQ(*normalize_axis(-1, 3), 2);
  EXPECT_EQ(*normalize_axis(-3, 3), 0);
  EXPECT_EQ(normalize_axis(3, 3).error().message(), "axis 3 is outside -3..2");
  EXPECT_EQ(normalize_axis(-4, 3).error().message(), "axis -4 is outside -3..2");
  EXPECT_EQ(normalize_axis(0, 0).error().kind(), ErrorKind::kInput);
}

TEST(ShapeTest, Broadcasts) {
  EXPECT_EQ(broadcast_text({3, 1}, {4}), "[3, 4]");
  EXPECT_EQ(broadcast_text({}, {2, 3}), "[2, 3]");
  EXPECT_EQ(broadcast_text({0, 4}, {1}), "[0, 4]");
  EXPECT_EQ(broadcast_text({2, 1, 5}, {7, 1}), "[2, 7, 5]");
  EXPECT_EQ(broadcast_text({1}, {0}), "[0]");
  EXPECT_THAT(broadcast_text({2, 3}, {4}), HasSubstr("error: shapes [2, 3] and [4]"));
  EXPECT_THAT(broadcast_text({0}, {2}), HasSubstr("error"));
}

TEST(ShapeTest, CheckedNumelRefusesOverflowAndNegatives) {
  EXPECT_EQ(*checked_numel({}), 1);
  EXPECT_EQ(*checked_numel({3, 5}), 15);
  EXPECT_EQ(*checked_numel({int64_t{1} << 40, 0}), 0);
  EXPECT_THAT(checked_numel({3, -1}).error().message(), HasSubstr("axis -1"));
  EXPECT_THAT(checked_numel({int64_t{1} << 40, int64_t{1} << 40}).error().message(),
              HasSubstr("overflow"));
  EXPECT_THAT(checked_numel({INT64_MAX, 2}).error().message(), HasSubstr("overflow"));
}

uint16_t rounded(float value, bool half) {
  return half ? float_to_half(value) : float_to_bfloat16(value);
}
float widened(uint32_t bits, bool half) {
  const auto b = static_cast<uint16_t>(bits);
  return half ? half_to_float(b) : bfloat16_to_float(b);
}

class SixteenBits : public ::testing::TestWithParam<bool> {};

TEST_P(SixteenBits, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = widened(bits, GetParam());
    const uint16_t back = rounded(value, GetParam());
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(widened(back, GetParam()))) << bits;
      EXPECT_EQ(back & 0x8000u, bits & 0x8000u) << bits;
    } else {
      ASSERT_EQ(back, bits) << value;
    }
  }
}

TEST_P(SixteenBits, TiesGoToTheEvenNeighbour) {
  const uint32_t infinity = GetParam() ? 0x7c00 : 0x7f80;
  for (uint32_t bits = 0; bits + 1 < infinity; ++bits) {
    const float low = widened(bits, GetParam());
    const float high = widened(bits + 1, GetParam());
    const auto tie = static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2);
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(rounded(tie, GetParam()), even) << tie;
    ASSERT_EQ(rounded(-tie, GetParam()), even | 0x8000u) << tie;
    ASSERT_EQ(rounded(std::nextafter(tie, 0.0f), GetParam()), bits) << tie;
    ASSERT_EQ(rounded(std::nextafter(tie, INFINITY), GetParam()), bits + 1) << tie;
  }
}

TEST_P(SixteenBits, TooLargeIsInfinity) {
  EXPECT_EQ(widened(rounded(std::numeric_limits<float>::max(), GetParam()), GetParam()), INFINITY);
  EXPECT_EQ(widened(rounded(-INFINITY, GetParam()), GetParam()), -INFINITY);
}

INSTANTIATE_TEST_SUITE_P(Formats, SixteenBits, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "float16" : "bfloat16"; });

TEST(HalfTest, KnownValues) {
  EXPECT_EQ(float_to_half(1.0f), 0x3c00);
  EXPECT_EQ(float_to_half(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);  // the tie above the largest
  EXPECT_EQ(float_to_half(65519.99f), 0x7bff);
  EXPECT_EQ(float_to_half(0x1p-24f), 0x0001);
  EXPECT_EQ(float_to_half(0x1p-25f), 0x0000);
  EXPECT_EQ(float_to_bfloat16(1.0f), 0x3f80);
}

// Random123's kat_vectors: philox 4x32, 10 rounds.
TEST(PhiloxTest, KnownAnswers) {
  constexpr uint32_t kOnes = 0xffffffffu;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, LanesGiveTheBitsOfEachElement) {
  const PhiloxKey key = philox_key(1, 2, 3);
  for (const PhiloxFill fill : all_philox_fills()) {
    for (const int64_t first : {int64_t{0}, int64_t{5}, int64_t{1} << 28, int64_t{1} << 29}) {
      const uint64_t sample = 0x300000007u;
      alignas(64) uint32_t bits[3 * kPhiloxGroup];
      fill(key, sample, first, 3, bits);
      for (int64_t i = 0; i < 3 * kPhiloxGroup; ++i) {
        const auto element = static_cast<uint64_t>(first * kPhiloxGroup + i);
        ASSERT_EQ(bits[i], philox_element(key, sample, element)) << "element " << element;
      }
    }
  }
}

TEST(PhiloxTest, EveryPartOfTheKeyMatters) {
  std::set<uint32_t> drawn;
  for (uint64_t seed : {0, 1}) {
    for (uint64_t node : {0, 1}) {
      for (int64_t step : {0, 1}) {
        for (uint64_t sample : {0, 1}) {
          for (uint64_t element : {0, 1, 16, 64}) {
            drawn.insert(philox_element(philox_key(seed, node, step), sample, element));
          }
        }
      }
    }
  }
  EXPECT_EQ(drawn.size(), 64u);
}

TEST(AttributesTest, PrintInTheOrderOfNames) {
  Attributes a{{"epsilon", 1e-5f}, {"axis", int64_t{1}}};
  EXPECT_EQ(a.text(), "axis=1 epsilon=1e-05");
  a.set("perm", std::vector<int64_t>{0, 2, 1});
  a.set("mode", std::string("sum"));
  a.set("value", make_constant<float>(DType::kFloat32, {2}, std::vector<float>{1, 2}));
  EXPECT_EQ(a.text(), "axis=1 epsilon=1e-05 mode=sum perm=[0,2,1] value=float32[2]");
}

TEST(AttributesTest, GetGivesTheDefaultForAnAbsentName) {
  const Attributes a{{"axis", int64_t{1}}};
  EXPECT_EQ(a.i("axis", 7), 1);
  EXPECT_EQ(a.i("missing", 7), 7);
  EXPECT_EQ(a.s("missing", "mean"), "mean");
  EXPECT_TRUE(a.has("axis"));
  EXPECT_FALSE(a.has("missing"));
}

}  // namespace core_test
}  // namespace ofsdp
