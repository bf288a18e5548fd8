// Products by OpenBLAS against the definition, on any processor: every orientation, addend and
// scale, sizes that are no multiple of anything, and more rows than one call takes. And the choice
// of products that it computes.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/products.h"
#include "kernels/ops/matmul/matrix_product.h"
#include "tests/support/namespaces.h"
#include "tests/support/products.h"

namespace ofsdp {
namespace blas_product_test {

using kernels::ops::MatrixProduct;
using Addend = MatrixProduct::Addend;

void expect_product(const MatrixProduct& p) {
  expect_near_definition(p, *kernels::ops::make_blas_product(p),
                         1e-6 * std::sqrt(static_cast<double>(p.inner)) * 10);
}

TEST(BlasProduct, AgreesWithTheDefinition) { for_each_form(sized(131, 70, 93), expect_product); }

TEST(BlasProduct, TakesMoreRowsThanOneCall) {
  MatrixProduct p = sized(4096 * 2 + 5, 9, 7);
  p.transpose_a = true;
  p.addend = Addend::kBias;
  expect_product(p);
}

TEST(BlasProduct, TakesBatches) {
  MatrixProduct one_each = sized(13, 7, 9), broadcast = one_each;
  one_each.batch_a = one_each.batch_b = {5};
  broadcast.batch_a = {2, 1, 2};
  broadcast.batch_b = {1, 3, 2};
  for_each_form(one_each, expect_product);
  for_each_form(broadcast, expect_product);
}

TEST(BlasProduct, IsAskedForAllWithoutOneDnn) {
  if (kernels::onednn::is_present()) GTEST_SKIP() << "this build has oneDNN";
  MatrixProduct batch = sized(1, 3, 1), half = batch;
  batch.batch_a = batch.batch_b = {2};
  half.dtype = DType::kBFloat16;
  EXPECT_TRUE(kernels::ops::blas_accepts(batch));
  EXPECT_FALSE(kernels::ops::blas_accepts(half));
}

TEST(BlasProduct, IsAskedForWhatOneDnnDoesSlowlyWithoutAvx512) {
  using kernels::ops::blas_accepts;
  if (!kernels::onednn::is_present()) GTEST_SKIP() << "this build has no oneDNN";
  const bool avx2 = !kernels::onednn::has_avx512();
  const MatrixProduct plain = sized(256, 256, 257), many_rows = sized(513, 256, 1024);
  MatrixProduct turned = plain, batch = plain, small = plain, half = plain;
  MatrixProduct long_sums = sized(512, 257, 512), short_sums = sized(512, 256, 512);
  for (MatrixProduct* p : {&turned, &batch, &small, &half, &long_sums, &short_sums})
    p->transpose_a = true;
  batch.batch_a = batch.batch_b = {2};
  small.rows = 2;
  half.dtype = DType::kBFloat16;
  for (const MatrixProduct& p :
       {turned, long_sums, sized(512, 256, 1024), sized(8, 256, 512), sized(128, 256, 768)})
    EXPECT_EQ(static_cast<bool>(blas_accepts(p)), avx2);
  for (const MatrixProduct& p :
       {plain, many_rows, sized(7, 256, 512), sized(127, 256, 768), short_sums, batch, small, half})
    EXPECT_FALSE(blas_accepts(p)) << blas_accepts(p).reason();
  EXPECT_STREQ(blas_accepts(half).reason(), "not float32");
}

}  // namespace blas_product_test
}  // namespace ofsdp
