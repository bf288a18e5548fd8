// Matrix products for tests of the kernels that multiply.
//
//   for_each_form(sized(131, 70, 93), [](const MatrixProduct& p) { ... });
//
// expect_near_definition runs the product's kernel on numbers between -1 and 1 in its dtype
// (float32, float16, bfloat16) and compares dst with the product in double; `tolerance` is
// absolute. Threads: one. Errors: failed expectations.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "kernels/ops/matmul/matrix_product.h"

namespace ofsdp {

kernels::ops::MatrixProduct sized(int64_t rows, int64_t inner, int64_t columns);

// The product in all orientations, without addend, with a bias, and added to dst.
void for_each_form(const kernels::ops::MatrixProduct& product,
                   const std::function<void(const kernels::ops::MatrixProduct&)>& visit);

void expect_near_definition(const kernels::ops::MatrixProduct& product, kernels::Kernel& kernel,
                            double tolerance);

}  // namespace ofsdp
