#include <cmath>

#include "kernels/core/tensor.h"
#include "runtime/data/row_source.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace data_synthetic_test {

using testing_data::counted;

template <typename T>
std::vector<T> read(SyntheticData& data, int column, const std::vector<int64_t>& samples) {
  const BoundColumn& bound = data.columns()[static_cast<size_t>(column)];
  std::vector<T> values(samples.size() * bound.row_bytes() / sizeof(T));
  EXPECT_TRUE(data.read_rows(column, samples, reinterpret_cast<std::byte*>(values.data())).ok());
  return values;
}

SyntheticData make(uint64_t seed) {
  return SyntheticData(seed, {{"x", DType::kFloat32, {3, 5}, SyntheticKind::kNormal},
                              {"ids", DType::kInt64, {7}, SyntheticKind::kBelow, 11},
                              {"mask", DType::kInt64, {2}, SyntheticKind::kOnes},
                              {"flag", DType::kBool, {2}, SyntheticKind::kOnes},
                              {"other", DType::kInt32, {2}, SyntheticKind::kZeros},
                              {"target", DType::kFloat32, {4}, SyntheticKind::kUniform},
                              {"bits", DType::kFloat32, {4}, SyntheticKind::kBits},
                              {"half", DType::kFloat16, {3, 5}, SyntheticKind::kNormal}});
}

TEST(Synthetic, ASampleDoesNotDependOnItsNeighbours) {
  SyntheticData data = make(1), again = make(1), other = make(2);
  EXPECT_EQ(data.samples(), kEndless);
  const std::vector<float> all = read<float>(data, 0, {0, 1, 2, 3});
  EXPECT_EQ(read<float>(again, 0, {2}), std::vector<float>(all.begin() + 30, all.begin() + 45));
  EXPECT_NE(read<float>(other, 0, {0, 1, 2, 3}), all);
}

TEST(Synthetic, NormalsHaveTheirMoments) {
  SyntheticData data = make(0);
  const std::vector<float> values = read<float>(data, 0, counted<int64_t>(10000));
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    squares += values[i] * values[i];
    fourth += std::pow(values[i], 4);
    if (i > 0) neighbours += values[i] * values[i - 1];
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 0.015);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_NEAR(fourth / n, 3, 0.15);
  EXPECT_NEAR(neighbours / n, 0, 0.015);
}

TEST(Synthetic, OtherKinds) {
  SyntheticData data = make(0);
  const std::vector<int64_t> samples = counted<int64_t>(5000);
  std::vector<int> counts(11);
  for (int64_t id : read<int64_t>(data, 1, samples)) ++counts.at(static_cast<size_t>(id));
  for (int count : counts) EXPECT_NEAR(count, 35000 / 11, 300);
  for (int64_t one : read<int64_t>(data, 2, samples)) EXPECT_EQ(one, 1);
  for (uint8_t one : read<uint8_t>(data, 3, samples)) EXPECT_EQ(one, 1);
  for (int32_t zero : read<int32_t>(data, 4, samples)) EXPECT_EQ(zero, 0);
  double uniform = 0, bits = 0;
  for (float value : read<float>(data, 5, samples)) {
    EXPECT_TRUE(value >= 0 && value < 1);
    uniform += value;
  }
  for (float value : read<float>(data, 6, samples)) {
    EXPECT_TRUE(value == 0 || value == 1);
    bits += value;
  }
  EXPECT_NEAR(uniform / 20000, 0.5, 0.01);
  EXPECT_NEAR(bits / 20000, 0.5, 0.02);
  for (uint16_t value : read<uint16_t>(data, 7, {0, 1}))
    EXPECT_LT(std::abs(half_to_float(value)), 6);
}

}  // namespace data_synthetic_test
}  // namespace ofsdp
