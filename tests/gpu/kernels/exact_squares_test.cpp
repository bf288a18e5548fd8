// Sums of squares that no order changes: whole numbers are exact at every scale; order, cut and
// threads change no bit; values that are not finite give NaN.
#include <algorithm>
#include <limits>

#include "kernels/cuda/device/arithmetic.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace exact_squares_test {

using Doubles = std::vector<double>;

class CudaExactSquares : public DeviceTest {
 protected:
  // Each part belongs to a rank: the limbs of all ranks are added.
  static double norm(const std::vector<Doubles>& parts) {
    const Tensor sum(DType::kUInt8, Doubles(sizeof(ofsdp_exact_sum), 0));
    Doubles added(OFSDP_EXACT_LIMBS, 0);
    const Tensor limbs(DType::kFloat64, added);
    for (const Doubles& part : parts) {
      const Tensor values(DType::kFloat32, part, 1);
      const auto count = static_cast<int64_t>(part.size());
      auto* const at = sum.as<ofsdp_exact_sum>();
      EXPECT_CUDA(add_exact_squares(values.as<float>(), count, at, nullptr));
      EXPECT_CUDA(take_exact_sum(at, limbs.as<double>(), nullptr));
      EXPECT_CUDA(cudaDeviceSynchronize());
      const Doubles taken = limbs.values();
      for (size_t i = 0; i < added.size(); ++i) added[i] += taken[i];
    }
    const Tensor all(DType::kFloat64, added), made(DType::kFloat64, {0});
    EXPECT_CUDA(exact_norm(all.as<double>(), made.as<double>(), nullptr));
    EXPECT_CUDA(cudaDeviceSynchronize());
    return made.values()[0];
  }

  static Doubles some(size_t count) {
    Doubles values;
    for (size_t i = 0; i < count; ++i) {
      const double x = std::sin(0.7 * static_cast<double>(i));
      values.push_back(static_cast<float>(x * std::ldexp(1, static_cast<int>(i % 60) - 30)));
    }
    return values;
  }
};

TEST_F(CudaExactSquares, WholeNumbersAreExactAtEveryScale) {
  for (const int scale : {-120, -64, -33, 0, 31, 60, 100}) {
    Doubles values;
    double sum = 0;
    for (int k = 1; k <= 1500; ++k) {
      values.push_back(std::ldexp(k, scale));
      sum += static_cast<double>(k) * k;
    }
    EXPECT_EQ(norm({values}), std::ldexp(sum, 2 * scale)) << scale;
  }
}

TEST_F(CudaExactSquares, OrderCutAndThreadsChangeNoBit) {
  Doubles values = some(5000);
  const double whole = norm({values});
  double near = 0;
  for (const double v : values) near += v * v;
  EXPECT_NEAR(whole, near, 1e-12 * near);
  const auto middle = values.begin() + 1234;
  EXPECT_EQ(norm({{values.begin(), middle}, {middle, values.end()}}), whole);
  std::ranges::reverse(values);
  EXPECT_EQ(norm({values}), whole);
  take_turns_backwards(true);
  EXPECT_EQ(norm({values}), whole);
}

TEST_F(CudaExactSquares, WhatIsNotFiniteMakesNaNOnce) {
  for (const double bad : {HUGE_VAL, std::nan("")}) {
    Doubles values = some(300);
    values[77] = bad;
    EXPECT_TRUE(std::isnan(norm({some(10), values})));
  }
  EXPECT_EQ(norm({{}}), 0);
  EXPECT_EQ(norm({{0, -0.0}}), 0);
}

// Squares of float32's largest and least values; bits below 2^-256 are cut off.
TEST_F(CudaExactSquares, HoldsTheWholeRange) {
  const double most = std::numeric_limits<float>::max();
  EXPECT_EQ(norm({{most, most}}), 2 * most * most);
  EXPECT_EQ(norm({{std::ldexp(1, -128)}}), std::ldexp(1, -256));
  EXPECT_EQ(norm({{std::ldexp(1, -149)}}), 0);
}

}  // namespace exact_squares_test
}  // namespace ofsdp::kernels::cuda
