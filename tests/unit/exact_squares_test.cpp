// The sum of squares that no order changes, against 80-bit and integer sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/optimizers/squares.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace exact_squares_test {

double sum_on(const std::vector<float>& values, size_t ranks) {
  std::vector<double> limbs;
  for (size_t r = 0; r < ranks; ++r) {
    const size_t begin = values.size() * r / ranks, end = values.size() * (r + 1) / ranks;
    ExactSquares squares;
    squares.add(std::span(values).subspan(begin, end - begin));
    const auto mine = squares.limbs();
    limbs.insert(limbs.end(), mine.begin(), mine.end());
  }
  return ExactSquares::sum(limbs);
}

std::vector<float> mixed_magnitudes(size_t count) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> exponent(-60, 60);
  std::uniform_real_distribution<float> mantissa(-1, 1);
  std::vector<float> values(count);
  for (float& v : values) v = std::ldexp(mantissa(random), exponent(random));
  return values;
}

TEST(ExactSquares, NoOrderAndNoNumberOfRanksChangesTheSum) {
  std::vector<float> values = mixed_magnitudes(10007);
  const double sum = sum_on(values, 1);
  double in_order = 0;
  for (const float v : values) in_order += static_cast<double>(v) * v;
  EXPECT_NEAR(sum, in_order, 1e-12 * in_order);
  for (const size_t ranks : {2, 3, 7, 64}) EXPECT_EQ(sum_on(values, ranks), sum) << ranks;
  std::ranges::sort(values);
  EXPECT_EQ(sum_on(values, 5), sum);
}

TEST(ExactSquares, SmallWholeNumbers) {
  EXPECT_EQ(sum_on({}, 1), 0);
  EXPECT_EQ(sum_on({3, -4}, 2), 25);
  EXPECT_EQ(sum_on(std::vector<float>(1 << 16, 65536.0f), 3), std::ldexp(1.0, 48));
}

// A sum in double would lose these next to the large value.
TEST(ExactSquares, NothingIsLostBesideALargeValue) {
  std::vector<float> values(1025, std::ldexp(1.0f, -30));
  values[512] = 1;
  EXPECT_EQ(sum_on(values, 4), 1 + std::ldexp(1.0, -50));
}

TEST(ExactSquares, TheEndsOfTheRange) {
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(sum_on({most, most}, 2), 2.0 * most * static_cast<double>(most));
  const float least_kept = std::ldexp(1.0f, -128);
  EXPECT_EQ(sum_on({least_kept}, 1), std::ldexp(1.0, -256));
  EXPECT_EQ(sum_on({std::numeric_limits<float>::denorm_min()}, 1), 0);
  EXPECT_TRUE(std::isnan(sum_on({1, std::numeric_limits<float>::infinity()}, 1)));
  EXPECT_TRUE(std::isnan(sum_on({1, std::numeric_limits<float>::quiet_NaN(), 2}, 3)));
}

TEST(ExactSquares, SumsOfBlocksAddExactlyInAnyOrder) {
  const std::vector<double> sums = {std::ldexp(1.0, 260), 1, std::ldexp(1.0, -50), 0.1, 3e-40};
  ExactSquares forth, back;
  for (const double sum : sums) forth.add_sum(sum);
  for (size_t i = sums.size(); i-- > 0;) back.add_sum(sums[i]);
  EXPECT_EQ(forth.limbs(), back.limbs());
  ExactSquares small;
  small.add_sum(1);
  small.add_sum(std::ldexp(1.0, -50));
  EXPECT_EQ(ExactSquares::sum(small.limbs()), 1 + std::ldexp(1.0, -50));
  EXPECT_EQ(ExactSquares::sum(forth.limbs()), std::ldexp(1.0, 260));
}

TEST(ExactSquares, ASumThatIsInfiniteStaysSo) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  ExactSquares squares;
  squares.add_sum(2);
  squares.add_sum(kInfinity);
  EXPECT_EQ(ExactSquares::sum(squares.limbs()), kInfinity);
  squares.add_sum(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(ExactSquares::sum(squares.limbs())));
}

TEST(SquareLanes, PiecesDoNotChangeTheSum) {
  std::vector<float> values(1019);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(1.0f + i % 7, i % 40 - 20);
  const std::span<const float> all = values;
  for (const size_t cut : {size_t{16}, size_t{512}, size_t{1008}}) {
    SquareLanes lanes;
    lanes.add(all.first(cut));
    lanes.add(all.subspan(cut));
    EXPECT_EQ(lanes.sum(), sum_of_squares(all)) << cut;
  }
}

}  // namespace exact_squares_test
}  // namespace ofsdp
