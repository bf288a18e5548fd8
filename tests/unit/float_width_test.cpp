// The conversions of mixed precision against conversions of one number: every exponent, subnormal
// numbers among normal ones, infinities and NaN, at every length and offset that vectors end at.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "kernels/core/tensor.h"
#include "kernels/cpu/stored_floats.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace float_width_test {

// Returns, for each sign and exponent, the numbers where rounding changes direction.
std::vector<float> turning_points() {
  std::vector<float> all;
  for (uint32_t high = 0; high < 512; ++high) {
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0x17fffu, 0x18000u, 0x1000u, 0x3000u,
                         0x7fffffu, 0x7f7fffu, 0x400000u, 0x3fffffu}) {
      all.push_back(std::bit_cast<float>(high << 23 | low));
    }
  }
  return all;
}

// A subnormal number now and then, so that vectors with and without one alternate.
std::vector<float> mixture() {
  std::vector<float> all;
  uint32_t state = 1;
  for (int i = 0; i < 4000; ++i) {
    state = state * 1664525u + 1013904223u;
    const bool tiny = i % 97 == 5;
    all.push_back(std::bit_cast<float>(tiny ? state & 0x807fffffu : state));
  }
  return all;
}

void expect_same(const std::vector<float>& x, DType to, uint16_t (*one)(float)) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> y(x.size());
  narrow(x.data(), to, y.data(), n);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i], one(x[i])) << i << ": " << std::bit_cast<uint32_t>(x[i]);
  }
}

TEST(FloatWidth, RoundsAsOneNumberIsRounded) {
  for (const auto& x : {turning_points(), mixture()}) {
    expect_same(x, DType::kBFloat16, float_to_bfloat16);
    expect_same(x, DType::kFloat16, float_to_half);
  }
}

TEST(FloatWidth, WritesItsSpanAndNoMore) {
  const std::vector<float> x = mixture();
  const WidthSpan span = width_span(DType::kFloat32, DType::kBFloat16);
  for (int64_t begin = 0; begin < 40; begin += 3) {
    for (int64_t end = begin; end < begin + 100; ++end) {
      std::vector<uint16_t> y(200, 0x1234);
      span(x.data(), y.data(), begin, end);
      for (int64_t i = 0; i < 200; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(y[at], i >= begin && i < end ? float_to_bfloat16(x[at]) : 0x1234) << begin << i;
      }
    }
  }
}

}  // namespace float_width_test
}  // namespace ofsdp
