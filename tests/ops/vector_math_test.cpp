// The vector forms in kernels/cpu/vector_math.h and related files against the C library in double,
// over all exponents of float32: the error in units in the last place, and the special values.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/pointwise.h"
#include "kernels/cpu/real_math.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace vector_math_test {

// Distance from `expected` to `found` in units in the last place (float32).
double ulps(float found, double expected) {
  const auto rounded = static_cast<float>(expected);
  if (found == rounded || (std::isnan(found) && std::isnan(rounded))) return 0;
  if (!std::isfinite(found) || !std::isfinite(rounded)) return INFINITY;
  const double size = std::max(std::abs(expected), 0x1p-126);
  const double unit = std::ldexp(1.0, std::ilogb(size) - 23);
  return std::abs(static_cast<double>(found) - expected) / unit;
}

struct Form {
  const char* name;
  float (*separate)(float);  // rounds products before it adds them
  float (*fused)(float);     // as a processor with AVX2, or aarch64, computes it
  double (*library)(double);
  double most;  // units in the last place
  float from = -INFINITY;
  float to = INFINITY;
};

using Separate = FloatMathBy<SeparateMultiplyAdd>;
using Fused = FloatMathBy<FusedMultiplyAdd>;

#define FORM(name, ...) \
  Form { #name, Separate::name, Fused::name, std::name, __VA_ARGS__ }

const Form kForms[] = {FORM(exp, 1.5),
                       FORM(expm1, 3),
                       FORM(log, 1.5),
                       FORM(log1p, 3),
                       FORM(erf, 5),
                       FORM(tanh, 3),
                       FORM(sin, 2, -kMaxTurned, kMaxTurned),
                       FORM(cos, 2, -kMaxTurned, kMaxTurned),
                       FORM(tan, 4, -kMaxTurned, kMaxTurned),
                       FORM(asin, 3),
                       FORM(acos, 3),
                       FORM(atan, 3),
                       FORM(sinh, 4),
                       FORM(cosh, 4),
                       FORM(asinh, 4),
                       FORM(acosh, 4),
                       FORM(atanh, 4)};

class VectorMath : public ::testing::TestWithParam<Form> {};

void check_form(const Form& form, float (*vector)(float)) {
  double worst = 0;
  float at = 0;
  auto check = [&](float x) {
    if (x < form.from || x > form.to) return;
    const double error = ulps(vector(x), form.library(static_cast<double>(x)));
    if (error > worst) {
      worst = error;
      at = x;
    }
  };
  // A prime step: every exponent, always with other mantissas.
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 4093) {
    check(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (float x : {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.0f, -1.0f, 1e-45f, 88.7228f, 89.5f,
                  -103.97f, -87.4f, 0.5f, 1.5707964f, 3.1415927f, 11.0f, 1e8f, 3.4e38f}) {
    check(x);
  }
  EXPECT_LE(worst, form.most) << form.name << " at " << at << ": " << vector(at) << ", expected "
                              << form.library(static_cast<double>(at));
}

TEST_P(VectorMath, IsAsExactAsPromised) {
  check_form(GetParam(), GetParam().separate);
  check_form(GetParam(), GetParam().fused);
}

INSTANTIATE_TEST_SUITE_P(Functions, VectorMath, ::testing::ValuesIn(kForms),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(VectorExpFlushed, IsExpWithoutSubnormalResults) {
  const Form form{"exp_flushed",
                  vector_exp_flushed<SeparateMultiplyAdd>,
                  vector_exp_flushed<FusedMultiplyAdd>,
                  std::exp,
                  1.5,
                  -87.0f,
                  88.0f};
  check_form(form, form.separate);
  check_form(form, form.fused);
  for (float x : {-87.1f, -103.0f, -1e6f, -3e38f, -INFINITY}) {
    EXPECT_EQ(form.separate(x), 0) << x;
    EXPECT_EQ(form.fused(x), 0) << x;
  }
}

TEST(VectorGeluSlope, IsAsExactAsPromised) {
  const auto promised = [](float x) {
    const double d = static_cast<double>(x);
    EXPECT_NEAR(static_cast<double>(Separate::gelu_slope(x)), Separate::gelu_slope(d), 3e-7) << x;
    EXPECT_NEAR(static_cast<double>(Fused::gelu_slope(x)), Separate::gelu_slope(d), 2.3e-7) << x;
  };
  for (float x = -9; x < 9; x += 1e-4f) promised(x);
  for (float x : {-1e18f, -1e-40f, 0.0f, 1e-40f, 1e18f}) promised(x);
  EXPECT_NEAR(Fused::gelu_slope(-INFINITY), 0, 2e-8);
  EXPECT_EQ(Fused::gelu_slope(INFINITY), 1);
  EXPECT_TRUE(std::isnan(Fused::gelu_slope(NAN)));
}

TEST(VectorPow, IsAsExactAsPromised) {
  double worst = 0;
  std::pair<float, float> at;
  auto check = [&](float x, float e) {
    const double expected = std::pow(static_cast<double>(x), static_cast<double>(e));
    const double error = ulps(vector_pow(x, e), expected);
    if (error > worst) {
      worst = error;
      at = {x, e};
    }
  };
  for (float e : {0.0f, -0.0f, 1.0f, -1.0f, 2.0f, 3.0f, 0.5f, -0.5f, 1.0f / 3, 2.5f, -7.0f, 17.0f,
                  100.3f, 1e6f, 16777216.0f, INFINITY, -INFINITY, NAN}) {
    for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 40093) {
      check(std::bit_cast<float>(static_cast<uint32_t>(bits)), e);
    }
    for (float x : {0.0f, -0.0f, 1.0f, -1.0f, 2.0f, -2.0f, INFINITY, -INFINITY, NAN, 0.999999f}) {
      check(x, e);
    }
  }
  EXPECT_LE(worst, 1.5) << at.first << "^" << at.second << " = " << vector_pow(at.first, at.second);
}

// An element has the same bits in a vector, in the rest after vectors, and alone.
TEST(FloatLoops, DoNotLookAtTheLength) {
  constexpr size_t kMax = 83;
  std::array<float, kMax> a, b, row, alone;
  for (size_t i = 0; i < kMax; ++i) {
    a[i] = 0.37f * static_cast<float>(i) - 7.1f;
    b[i] = 1.9f - 0.11f * static_cast<float>(i);
  }
  for (int op = 1; op < kChainOps; ++op) {
    const RowLoop loop = chain_loops(static_cast<ChainOp>(op))[DType::kFloat32];
    if (static_cast<ChainOp>(op) == ChainOp::kRound) continue;
    for (size_t i = 0; i < kMax; ++i) loop({&a[i], 1, &b[i], 1, &alone[i], 1}, {});
    for (size_t n = 2; n <= kMax; ++n) {
      loop({a.data(), 1, b.data(), 1, row.data(), static_cast<int64_t>(n)}, {});
      ASSERT_EQ(std::memcmp(row.data(), alone.data(), n * sizeof(float)), 0)
          << "operation " << op << ", " << n << " elements";
    }
  }
}

}  // namespace vector_math_test
}  // namespace ofsdp
