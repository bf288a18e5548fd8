// Matrix products by OpenBLAS, where it is faster than oneDNN.
//
// [Note: which library multiplies] Measured with one thread, 24 shapes of BERT and GPT-2: with
// AVX-512 oneDNN is the faster one or within 1.1 of it everywhere. With AVX2 alone its products of
// a transposed factor fall to 0.4 of the processor's rate where a leading dimension is a power of
// two (256 x 1024 x 1024: 48 against 105 GFLOP/s), and OpenBLAS's never do. What decides is known
// while planning and the same on every processor of a kind, so the same command gives the same
// bits.
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
