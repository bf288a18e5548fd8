// The matrix product in Gemm, MatMul and ofsdp.MatMul: dst = alpha * A' B' + addend.
//
// A' is [batch..., rows, inner], stored with the last two axes swapped if transpose_a; B' is
// [batch..., inner, columns], stored swapped if transpose_b. batch_a and batch_b have equally many
// axes; an axis is 1 if the operand is used for several matrices of the other. Kernels take A as
// input 0, B as input 1 and, for Addend::kBias, a row of `columns` as input 2; kAccumulate adds to
// dst.
//
// Products may be empty: without rows or columns there is nothing to do; if inner is 0, dst is the
// addend.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/op_def.h"
#include "kernels/cpu/float_kernels.h"

namespace ofsdp::kernels::ops {

struct MatrixProduct {
  enum class Addend { kNone, kBias, kAccumulate };

  DType dtype = DType::kFloat32;
  std::vector<int64_t> batch_a, batch_b;
  int64_t rows = 0, inner = 0, columns = 0;
  bool transpose_a = false, transpose_b = false;
  float alpha = 1.0f;
  Addend addend = Addend::kNone;

  std::vector<int64_t> batch() const;  // dst's
};

// Returns which matrices of A and B make matrix `m` of dst; `batch` is dst's.
std::pair<int64_t, int64_t> operands_of(const MatrixProduct& product,
                                        const std::vector<int64_t>& batch, int64_t m);

// Returns a Gemm's product, without its addend, for these attributes, A and Y.
MatrixProduct gemm_product(const Attributes& attributes, const TensorDesc& a, const TensorDesc& y);

// Returns the product for a MatMul, ofsdp.MatMul or FusedMatMul.
MatrixProduct matmul_product(const Attributes& attributes, const TensorDesc& a,
                             const TensorDesc& b);

// The faster library: OpenBLAS ([Note: which library multiplies]), else oneDNN. make_matrix_product
// makes a kernel for every product that library_accepts accepts.
Acceptance openblas_accepts(const MatrixProduct& product);
bool onednn_accepts(const MatrixProduct& product);
bool library_accepts(const MatrixProduct& product);
std::unique_ptr<Kernel> make_matrix_product(const MatrixProduct& product);

// 16-bit floats that oneDNN cannot multiply here, block by block in float32 ([Note: blocks]).
Acceptance widening_accepts(const MatrixProduct& product);
std::unique_ptr<Kernel> make_widening_product(const MatrixProduct& product);

// float64 and integers (which wrap) by plain loops. No addend.
bool loops_accept(const MatrixProduct& product);
std::unique_ptr<Kernel> make_matrix_loops(const MatrixProduct& product);

inline constexpr const char* kNoSuchProduct = "no library has such a product";

// Implementations for an operator that is one product: libraries, through float32, loops.
using ProductOf = MatrixProduct (*)(const Problem&);
template <ProductOf product>
Acceptance accepts_openblas(const Problem& p) {
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  return openblas_accepts(product(p));
}
template <ProductOf product>
Acceptance accepts_product(const Problem& p) {
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  return accept_if(onednn_accepts(product(p)), "oneDNN has no such product");
}
template <ProductOf product>
Acceptance accepts_library(const Problem& p) {
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  return accept_if(library_accepts(product(p)), kNoSuchProduct);
}
template <ProductOf product>
Acceptance accepts_widening(const Problem& p) {
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  return widening_accepts(product(p));
}
template <ProductOf product>
Acceptance accepts_product_loops(const Problem& p) {
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  return accept_if(loops_accept(product(p)), "neither float64 nor whole numbers with alpha 1");
}
template <ProductOf product>
std::unique_ptr<Kernel> create_product(const Problem& p) {
  return make_matrix_product(product(p));
}
template <ProductOf product>
std::vector<Implementation> product_kernels() {
  return {{"openblas", accepts_openblas<product>, create_product<product>},
          {"onednn", accepts_product<product>, create_product<product>},
          {"blocks", accepts_widening<product>,
           [](const Problem& p) { return make_widening_product(product(p)); }},
          in_float32<accepts_library<product>, create_product<product>>(),
          {"loops", accepts_product_loops<product>,
           [](const Problem& p) { return make_matrix_loops(product(p)); }}};
}

// The definition. Overwrites dst, which gets batch x rows x columns elements. No addend.
void reference_product(const MatrixProduct& product, const std::vector<double>& a,
                       const std::vector<double>& b, std::vector<double>& dst);

// Gemm's reference. It reads no values beyond an operand's shape.
std::vector<RefTensor> gemm_reference(const ReferenceContext& c);

// Matrix products by OpenBLAS, if it is faster than oneDNN.
//
// [Note: which library multiplies] Measured with one thread. With AVX-512 (24 shapes from BERT and
// GPT-2) oneDNN is faster or within 1.1 everywhere. With AVX2 alone (240 shapes on an EPYC 7003)
// OpenBLAS reaches 70 to 92 GFLOP/s from 32 rows on, and oneDNN 80 to 97, except for
//
//   A transposed      37 to 80 if rows or columns are fewer than 512 (256 x 1024 x 1024: 40
//                     against 90). Else, if inner is at most 256, oneDNN is faster by 1.03
//                     to 1.2.
//   none transposed   40 to 65 if columns are a multiple of 512 and rows at most 512
//                     (256 x 768 x 3072: 44 against 90); 0.9 to 0.97 times OpenBLAS's rate if
//                     columns are a multiple of 256 and rows 128 to 512.
//
// Only shapes and the instruction set decide. Planning knows them, and they are the same on every
// processor of a kind, so the same command gives the same bits.
//
// Without oneDNN, OpenBLAS multiplies everything in float32.
//
// OpenBLAS keeps up to kPackedColumns columns of a factor in its own memory, which the plan does
// not count. The pool shares the matrices in a batch, or one matrix's rows or columns.

// Returns whether OpenBLAS takes the product; a refusal says why oneDNN is better. REQUIRES: the
// product is not empty.
Acceptance blas_accepts(const MatrixProduct& product);
std::unique_ptr<Kernel> make_blas_product(const MatrixProduct& product);

// float16 and bfloat16 products if oneDNN has none (processors without instructions for them).
// Blocks of both factors are widened to float32, the faster library multiplies them, and each dst
// block is rounded once, to nearest even.
//
// [Note: blocks] A block of each operand stays in the second- and third-level cache, so memory
// moves 16 bits per element; widening whole factors and rounding a whole result moves up to three
// times a float32 product's bytes. Each element in a block is used hundreds of times, so widening
// costs a few hundredths of the multiplication. 512 rows are faster than 1024, which leave less of
// A and dst in the second-level cache, and mostly faster than 256 and 128 (one thread, AVX2 and
// AVX-512, BERT's products). Sums over the inner axis run block by block in float32, in the same
// order for any thread count.
//
// Operands are plain, without batch axes. The workspace holds three blocks, at most 8 MiB, and the
// library's workspace for a product of such blocks.

Acceptance blocks_accept(const MatrixProduct& product);
std::unique_ptr<Kernel> make_product_blocks(const MatrixProduct& product);

// Products by oneDNN. REQUIRES: batch axes are merged as far as possible.

// Returns whether oneDNN has the dtype and the addend; the product may be empty.
bool onednn_may_multiply(const MatrixProduct& product);

// REQUIRES: onednn_may_multiply returned true; the product is not empty.
bool onednn_multiplies(const MatrixProduct& product);
std::unique_ptr<Kernel> make_onednn_product(const MatrixProduct& product);

}  // namespace ofsdp::kernels::ops
