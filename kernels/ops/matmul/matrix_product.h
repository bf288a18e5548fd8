// The matrix product of Gemm, MatMul and ofsdp.MatMul: dst = alpha * A' B' + addend.
//
// A' is [batch..., rows, inner], stored with its last two axes swapped when transpose_a; B' is
// [batch..., inner, columns], stored in the same two ways. batch_a and batch_b have the same number
// of axes, 1 where one operand is used for several matrices of the other. Kernels take A as input
// 0, B as input 1 and, for Addend::kBias, a row of `columns` as input 2; kAccumulate adds to what
// dst already holds.
//
// Empty products are fine: no rows or columns is nothing to do, inner 0 gives the addend alone.
// Values. Threads: as Kernel. No errors.
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

  std::vector<int64_t> batch() const;  // of dst
};

// Returns the matrices of A and B whose product is matrix `m` of `batch`, that of dst.
std::pair<int64_t, int64_t> operands_of(const MatrixProduct& product,
                                        const std::vector<int64_t>& batch, int64_t m);

// Returns the product of a Gemm with these attributes, A and Y, without its addend.
MatrixProduct gemm_product(const Attributes& attributes, const TensorDesc& a, const TensorDesc& y);

// Returns the product of a MatMul, ofsdp.MatMul or FusedMatMul.
MatrixProduct matmul_product(const Attributes& attributes, const TensorDesc& a,
                             const TensorDesc& b);

// The library that is faster: OpenBLAS ([Note: which library multiplies]), else oneDNN. What
// library_accepts, make_matrix_product makes.
Acceptance openblas_accepts(const MatrixProduct& product);
bool onednn_accepts(const MatrixProduct& product);
bool library_accepts(const MatrixProduct& product);
std::unique_ptr<Kernel> make_matrix_product(const MatrixProduct& product);

// 16-bit floats that oneDNN does not multiply here, block by block in float32 ([Note: blocks]).
Acceptance widening_accepts(const MatrixProduct& product);
std::unique_ptr<Kernel> make_widening_product(const MatrixProduct& product);

// Any number type by plain loops: float64 and whole numbers, which wrap. No addend.
bool loops_accept(const MatrixProduct& product);
std::unique_ptr<Kernel> make_matrix_loops(const MatrixProduct& product);

inline constexpr const char* kNoSuchProduct = "no library has such a product";

// The implementations of an operator that is one product: the libraries', by way of float32, loops.
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

// The definition: dst has batch x rows x columns elements and is overwritten (no addend).
void reference_product(const MatrixProduct& product, const std::vector<double>& a,
                       const std::vector<double>& b, std::vector<double>& dst);

// The reference of Gemm. Values beyond the shape of an operand are not read.
std::vector<RefTensor> gemm_reference(const ReferenceContext& c);

}  // namespace ofsdp::kernels::ops
