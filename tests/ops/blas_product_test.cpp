// Products of OpenBLAS against the definition, on any processor: every orientation, addend and
// scale, sizes that are no multiple of anything, and more rows than one call takes. And which
// products it is asked for.
#include "kernels/ops/matmul/blas_product.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/onednn.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace blas_product_test {

using kernels::ops::MatrixProduct;
using Addend = MatrixProduct::Addend;

std::vector<float> numbers(int64_t count, uint32_t seed) {
  std::vector<float> made(static_cast<size_t>(count));
  for (float& v : made) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1.0f;
  }
  return made;
}

MatrixProduct sized(int64_t rows, int64_t inner, int64_t columns) {
  MatrixProduct p;
  p.rows = rows;
  p.inner = inner;
  p.columns = columns;
  return p;
}

std::vector<double> wide(const std::vector<float>& from) { return {from.begin(), from.end()}; }

void expect_product(const MatrixProduct& p) {
  std::vector<float> a = numbers(p.rows * p.inner, 1), b = numbers(p.inner * p.columns, 2);
  std::vector<float> bias = numbers(p.columns, 3), dst = numbers(p.rows * p.columns, 4);
  std::vector<double> expected;
  kernels::ops::reference_product(p, wide(a), wide(b), expected);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (p.addend == Addend::kBias) expected[i] += bias[i % bias.size()];
    if (p.addend == Addend::kAccumulate) expected[i] += dst[i];
  }
  const auto bytes = [](std::vector<float>& v) {
    return TensorView{reinterpret_cast<std::byte*>(v.data()), {}};
  };
  const std::array<TensorView, 3> inputs = {bytes(a), bytes(b), bytes(bias)};
  const TensorView output = bytes(dst);
  ASSERT_TRUE(
      kernels::ops::make_blas_product(p)->run({inputs, {&output, 1}, nullptr, nullptr}).ok());
  const double tolerance = 1e-6 * std::sqrt(static_cast<double>(p.inner)) * 10;
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(dst[i], expected[i], tolerance) << "element " << i;
}

TEST(BlasProduct, AgreesWithTheDefinition) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const Addend addend : {Addend::kNone, Addend::kBias, Addend::kAccumulate}) {
        SCOPED_TRACE(::testing::Message()
                     << transpose_a << transpose_b << static_cast<int>(addend));
        MatrixProduct p = sized(131, 70, 93);
        p.transpose_a = transpose_a;
        p.transpose_b = transpose_b;
        p.addend = addend;
        p.alpha = addend == Addend::kBias ? 1.0f : 0.5f;
        expect_product(p);
      }
    }
  }
}

TEST(BlasProduct, TakesMoreRowsThanOneCall) {
  MatrixProduct p = sized(4096 * 2 + 5, 9, 7);
  p.transpose_a = true;
  p.addend = Addend::kBias;
  expect_product(p);
}

TEST(BlasProduct, IsAskedForTransposedFactorsWithoutAvx512) {
  using kernels::ops::blas_accepts;
  const bool avx2 = !kernels::onednn::has_avx512();
  const MatrixProduct plain = sized(256, 256, 256);
  MatrixProduct turned = plain, batch = plain, small = plain, half = plain;
  turned.transpose_a = batch.transpose_a = small.transpose_a = half.transpose_a = true;
  batch.batch_a = batch.batch_b = {2};
  small.rows = 2;
  half.dtype = DType::kBFloat16;
  EXPECT_EQ(static_cast<bool>(blas_accepts(turned)), avx2);
  for (const MatrixProduct& p : {plain, batch, small, half})
    EXPECT_FALSE(blas_accepts(p)) << blas_accepts(p).reason();
  EXPECT_STREQ(blas_accepts(half).reason(), "not float32");
}

}  // namespace blas_product_test
}  // namespace ofsdp
