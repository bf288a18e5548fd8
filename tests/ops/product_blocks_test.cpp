// Products of 16-bit floats by blocks in float32 against the definition, on any processor: every
// orientation, addend and scale, with more than one block along each axis. And the choice of
// products that use blocks.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ops/matmul/matrix_product.h"
#include "tests/support/namespaces.h"
#include "tests/support/products.h"

namespace ofsdp {
namespace product_blocks_test {

using kernels::ops::MatrixProduct;

// dst is rounded once: half a unit in the last place for the largest value, about sqrt(inner).
void expect_product(const MatrixProduct& p) {
  const double unit = p.dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
  const double largest = 1 + 2 * std::sqrt(static_cast<double>(p.inner));
  expect_near_definition(p, *kernels::ops::make_product_blocks(p), unit * largest);
}

TEST(ProductBlocks, AgreesWithTheDefinition) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const auto& [rows, inner, columns] : {std::array<int64_t, 3>{1030, 9, 7},
                                               {5, 1100, 11},
                                               {6, 9, 1041},
                                               {513, 2, 1025},
                                               {513, 1025, 2}}) {
      SCOPED_TRACE(::testing::Message() << rows << " " << inner << " " << columns);
      MatrixProduct p = sized(rows, inner, columns);
      p.dtype = dtype;
      for_each_form(p, expect_product);
    }
  }
}

TEST(ProductBlocks, TakesSingleProductsOfHalfFloats) {
  using kernels::ops::blocks_accept;
  MatrixProduct half = sized(256, 256, 256);
  half.dtype = DType::kFloat16;
  MatrixProduct batch = half, small = half;
  batch.batch_a = batch.batch_b = {2};
  small.rows = 2;
  EXPECT_TRUE(blocks_accept(half));
  EXPECT_STREQ(blocks_accept(sized(256, 256, 256)).reason(), "no 16-bit floats");
  EXPECT_STREQ(blocks_accept(batch).reason(), "a batch of matrices");
  EXPECT_STREQ(blocks_accept(small).reason(), "too small to gain");
}

}  // namespace product_blocks_test
}  // namespace ofsdp
