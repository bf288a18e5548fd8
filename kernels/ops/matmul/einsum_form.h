// An Einsum of two operands as a product of matrices: labels by their part in it.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include "kernels/ops/matmul/einsum_terms.h"

namespace ofsdp::kernels::ops {

struct EinsumForm {
  Labels batch, rows, columns, inner;
  bool possible = false;  // every label has such a part
  // An operand that already lies the other way round is read transposed.
  bool transpose_a = false, transpose_b = false;
  // How the operands and the result of the product lie.
  Labels a, b, y;
};

EinsumForm einsum_form(const EinsumTerms& terms, const std::vector<Shape>& shapes);

Shape label_shape(const EinsumTerms& terms, const Labels& labels);

}  // namespace ofsdp::kernels::ops
