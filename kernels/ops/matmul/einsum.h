// An einsum equation as labels: each operand axis has a label, each label a size. Ellipses become
// labels, spaces are gone, an implicit output is spelled out.
#pragma once

#include <algorithm>

#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

using Labels = std::vector<int>;

struct EinsumTerms {
  std::vector<Labels> inputs;  // the label of each axis
  Labels output;
  std::vector<int64_t> sizes;  // per label

  int labels() const { return static_cast<int>(sizes.size()); }
  std::string equation() const;  // with letters, no ellipsis; empty if too many labels
  // Returns whether an operand's axis differs in size from its label (1, broadcast).
  bool broadcasts(const std::vector<Shape>& shapes) const;
  bool repeats(size_t input) const;  // a label twice: a diagonal
};

Result<EinsumTerms> parse_einsum(const std::string& equation, const std::vector<Shape>& shapes);

inline bool has_label(const Labels& list, int label) {
  return std::ranges::find(list, label) != list.end();
}

// Returns the descs' shapes, from `first` on.
inline std::vector<Shape> operand_shapes(const std::vector<TensorDesc>& descs, size_t first = 0) {
  std::vector<Shape> shapes;
  for (size_t i = first; i < descs.size(); ++i) shapes.push_back(descs[i].shape);
  return shapes;
}

// REQUIRES: infer has accepted the equation.
inline EinsumTerms einsum_terms(const Attributes& attributes, const std::vector<Shape>& shapes) {
  return *parse_einsum(attributes.s("equation", ""), shapes);
}

// Returns an operand's stride for each label: a sum for a diagonal, 0 if it is absent or broadcast.
std::vector<int64_t> label_strides(const Labels& labels, const Shape& shape, int count);

// Iterates over all label combinations: output labels in output order, and for each, all summed
// labels.
struct EinsumLoop {
  EinsumLoop(const EinsumTerms& terms, const std::vector<Shape>& shapes);

  std::vector<int> order;                     // output labels, then summed ones
  std::vector<int64_t> sizes;                 // in that order
  size_t outer = 0;                           // how many output labels
  std::vector<std::vector<int64_t>> strides;  // [operand][in that order]
  int64_t outputs = 1, summed = 1;

  // Returns operand k's offset for combination `flat` of labels begin .. end-1 (in `order`).
  int64_t offset(size_t k, size_t begin, size_t end, int64_t flat) const {
    int64_t at = 0;
    for (size_t i = end; i-- > begin; flat /= sizes[i]) at += flat % sizes[i] * strides[k][i];
    return at;
  }
};

// An Einsum of two operands as a matrix product: which labels make each axis of the product.
struct EinsumForm {
  Labels batch, rows, columns, inner;
  bool possible = false;  // every label belongs to such an axis
  // An operand stored transposed is read transposed.
  bool transpose_a = false, transpose_b = false;
  // Axis order of both operands and the result in the product.
  Labels a, b, y;
};

EinsumForm einsum_form(const EinsumTerms& terms, const std::vector<Shape>& shapes);

Shape label_shape(const EinsumTerms& terms, const Labels& labels);

}  // namespace ofsdp::kernels::ops
