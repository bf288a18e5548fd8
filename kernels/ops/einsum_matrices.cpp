#include "kernels/ops/einsum_matrices.h"

#include <algorithm>
#include <optional>

#include "kernels/core/memory.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/einsum_terms.h"
#include "kernels/ops/matrix_product.h"

namespace ofsdp::ops {
namespace {

// Labels by their part in the product; `possible`: there is one.
struct MatrixForm {
  Labels batch, rows, columns, inner;
  bool possible = false;
};

MatrixForm matrix_form(const EinsumTerms& terms, const std::vector<Shape>& shapes) {
  MatrixForm form;
  if (shapes.size() != 2 || terms.broadcasts(shapes) || terms.repeats(0) || terms.repeats(1)) {
    return form;
  }
  for (int label : terms.output) {
    const bool left = has_label(terms.inputs[0], label), right = has_label(terms.inputs[1], label);
    (left && right ? form.batch : left ? form.rows : form.columns).push_back(label);
  }
  form.possible = true;
  for (size_t k = 0; k < 2; ++k) {
    for (int label : terms.inputs[k]) {
      if (has_label(terms.output, label)) continue;
      if (!has_label(terms.inputs[1 - k], label)) form.possible = false;  // summed alone
      if (k == 0) form.inner.push_back(label);
    }
  }
  return form;
}

Labels joined(std::initializer_list<Labels> lists) {
  Labels all;
  for (const Labels& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

struct Sizes {
  const EinsumTerms& terms;
  Shape shape(const Labels& list) const {
    std::vector<int64_t> axes;
    for (int label : list) axes.push_back(terms.sizes[static_cast<size_t>(label)]);
    return Shape(axes);
  }
  int64_t count(const Labels& list) const { return shape(list).numel(); }
};

// Copies an operand from the order of `from` to that of `to`; nothing when they are equal.
std::optional<StridedCopy> relayout(const EinsumTerms& terms, const Labels& from,
                                    const Labels& to) {
  if (from == to) return std::nullopt;
  const Sizes sizes{terms};
  const auto strides = label_strides(from, sizes.shape(from), terms.labels());
  std::vector<int64_t> source;
  for (int label : to) source.push_back(strides[static_cast<size_t>(label)]);
  const Shape shape = sizes.shape(to);
  return StridedCopy(shape, source, strides_of({DType::kFloat32, shape}), sizeof(float));
}

MatrixProduct product_of(const EinsumTerms& terms, const MatrixForm& form) {
  const Sizes sizes{terms};
  MatrixProduct p;
  if (!form.batch.empty()) p.batch_a = p.batch_b = {sizes.count(form.batch)};
  p.rows = sizes.count(form.rows);
  p.inner = sizes.count(form.inner);
  p.columns = sizes.count(form.columns);
  // An operand that already lies the other way round is read transposed.
  p.transpose_a = terms.inputs[0] == joined({form.batch, form.inner, form.rows});
  p.transpose_b = terms.inputs[1] == joined({form.batch, form.columns, form.inner});
  return p;
}

}  // namespace

bool accepts_einsum_matrices(const Problem& p) {
  if (!p.all_dtype(DType::kFloat32) || !p.all_plain()) return false;
  const auto shapes = operand_shapes(p.inputs);
  const EinsumTerms terms = einsum_terms(p.attributes, shapes);
  const MatrixForm form = matrix_form(terms, shapes);
  return form.possible && onednn_accepts(product_of(terms, form));
}

std::unique_ptr<Kernel> create_einsum_matrices(const Problem& p) {
  const auto shapes = operand_shapes(p.inputs);
  const EinsumTerms terms = einsum_terms(p.attributes, shapes);
  const MatrixForm form = matrix_form(terms, shapes);
  const MatrixProduct product = product_of(terms, form);
  const Labels a = product.transpose_a ? joined({form.batch, form.inner, form.rows})
                                       : joined({form.batch, form.rows, form.inner});
  const Labels b = product.transpose_b ? joined({form.batch, form.columns, form.inner})
                                       : joined({form.batch, form.inner, form.columns});
  const Labels y = joined({form.batch, form.rows, form.columns});
  const std::array<std::optional<StridedCopy>, 3> copies = {relayout(terms, terms.inputs[0], a),
                                                            relayout(terms, terms.inputs[1], b),
                                                            relayout(terms, y, terms.output)};
  const std::array<const TensorDesc*, 3> descs = {&p.in(0), &p.in(1), &p.out(0)};
  std::array<size_t, 3> offsets{};
  size_t bytes = 0;
  for (size_t i = 0; i < 3; ++i) {
    offsets[i] = bytes;
    if (copies[i]) bytes += align_up(descs[i]->bytes(), kTensorAlignment);
  }
  std::unique_ptr<Kernel> inner = make_matrix_product(product);
  const size_t workspace = bytes + inner->workspace_bytes();
  return make_kernel(
      [=, inner = std::move(inner)](const KernelArgs& args) {
        TensorView operands[] = {args.inputs[0], args.inputs[1], args.outputs[0]};
        for (size_t i = 0; i < 3; ++i) {
          if (!copies[i]) continue;
          std::byte* at = args.workspace + offsets[i];
          if (i < 2) copies[i]->run(operands[i].data, at);
          operands[i].data = at;
        }
        OFSDP_RETURN_IF_ERROR(
            inner->run({{operands, 2}, {operands + 2, 1}, args.workspace + bytes, args.step}));
        if (copies[2]) copies[2]->run(operands[2].data, args.outputs[0].data);
        return ok_status();
      },
      workspace);
}

}  // namespace ofsdp::ops
