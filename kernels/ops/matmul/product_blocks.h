// Matrix products of float16 and bfloat16 where oneDNN has none (processors without instructions
// for them): blocks of both factors are widened to float32, multiplied by the library that is the
// faster one for them, and each block of dst is rounded once, to nearest even.
//
// [Note: blocks] A block of each operand stays in the second- and third-level cache, so memory sees
// 16 bits an element; widening whole factors and rounding a whole result moves up to three times
// the bytes of a product of float32. Each element of a block is used hundreds of times, so widening
// costs a few hundredths of the multiplication. 512 rows are faster than 1024, of whose A and dst
// less stays in the second-level cache, and on the whole than 256 and 128 (one thread, AVX2 and
// AVX-512, products of BERT). Sums over the inner axis run block by block in float32, in the same
// order with any number of threads.
//
// Operands: as MatrixProduct, plain, without batch axes. Memory: three blocks of workspace, at most
// 8 MiB, and what the library needs for a product of such blocks.
// Threads: as Kernel. Errors: none.
#pragma once

#include <memory>

#include "kernels/ops/matmul/matrix_product.h"

namespace ofsdp::kernels::ops {

Acceptance blocks_accept(const MatrixProduct& product);
std::unique_ptr<Kernel> make_product_blocks(const MatrixProduct& product);

}  // namespace ofsdp::kernels::ops
