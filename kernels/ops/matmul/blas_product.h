// Matrix products by OpenBLAS, where it is faster than oneDNN.
//
// [Note: which library multiplies] Measured with one thread. With AVX-512 (24 shapes of BERT and
// GPT-2) oneDNN is the faster one or within 1.1 of it everywhere. With AVX2 alone (240 shapes on an
// EPYC 7003) OpenBLAS has 70 to 92 GFLOP/s from 32 rows on and oneDNN 80 to 97, but for
//
//   A transposed      37 to 80 where rows or columns are fewer than 512 (256 x 1024 x 1024: 40
//                     against 90). Else, and with at most 256 products a sum, it is the faster one
//                     by 1.03 to 1.2.
//   none transposed   40 to 65 where the columns are a multiple of 512 and the rows at most 512
//                     (256 x 768 x 3072: 44 against 90); 0.9 to 0.97 of OpenBLAS's rate where they
//                     are a multiple of 256 and the rows 128 to 512.
//
// Shapes and instructions alone decide, which planning knows and which are the same on every
// processor of a kind, so the same command gives the same bits.
//
// A build without oneDNN has OpenBLAS multiply everything in float32.
//
// Operands: as MatrixProduct, float32. Memory: OpenBLAS keeps up to kPackedColumns columns of a
// factor in memory of its own, which the plan does not count. Threads: as Kernel; the matrices of a
// batch, or rows or columns of one, are dealt to the pool. Errors: none.
#pragma once

#include <memory>

#include "kernels/ops/matmul/matrix_product.h"

namespace ofsdp::kernels::ops {

// Whether OpenBLAS takes the product; the refusal says why oneDNN is better. REQUIRES: it is not
// empty.
Acceptance blas_accepts(const MatrixProduct& product);
std::unique_ptr<Kernel> make_blas_product(const MatrixProduct& product);

}  // namespace ofsdp::kernels::ops
