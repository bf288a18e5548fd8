// The matrix product that Gemm, MatMul and ofsdp.MatMul share: dst = alpha * A' B' + addend.
//
// A' is [batch..., rows, inner], stored with its last two axes swapped when transpose_a; B' is
// [batch..., inner, columns] likewise. batch_a and batch_b have the same number of axes, 1 where
// one operand is used for several matrices of the other. Kernels take A as input 0, B as input 1
// and, for Addend::kBias, a row of `columns` as input 2; kAccumulate adds to what dst already
// holds.
//
// Empty products are fine: no rows or columns is nothing to do, inner 0 gives the addend alone.
// Owns: values. Threads: see Kernel. Errors: none; `onednn_accepts` says whether there is a kernel.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/op_def.h"

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

// Of a Gemm with these attributes, A and Y; without what it adds.
MatrixProduct gemm_product(const Attributes& attributes, const TensorDesc& a, const TensorDesc& y);

bool onednn_accepts(const MatrixProduct& product);
std::unique_ptr<Kernel> make_matrix_product(const MatrixProduct& product);

// Any number type by plain loops: float64 and whole numbers, which wrap. No addend.
bool loops_accept(const MatrixProduct& product);
std::unique_ptr<Kernel> make_matrix_loops(const MatrixProduct& product);

// The definition: dst has batch x rows x columns elements and is overwritten (no addend).
void reference_product(const MatrixProduct& product, const std::vector<double>& a,
                       const std::vector<double>& b, std::vector<double>& dst);

}  // namespace ofsdp::kernels::ops
