#include "kernels/ops/matmul/einsum_matrices.h"

#include <algorithm>
#include <optional>

#include "kernels/core/memory.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/matmul/einsum_form.h"
#include "kernels/ops/matmul/matrix_product.h"

namespace ofsdp::kernels::ops {
namespace {

// Copies an operand from the order of `from` to that of `to`; nothing when they are equal.
std::optional<StridedCopy> relayout(const EinsumTerms& terms, const Labels& from,
                                    const Labels& to) {
  if (from == to) return std::nullopt;
  const auto strides = label_strides(from, label_shape(terms, from), terms.labels());
  std::vector<int64_t> source;
  for (int label : to) source.push_back(strides[static_cast<size_t>(label)]);
  const Shape shape = label_shape(terms, to);
  return StridedCopy(shape, source, strides_of({DType::kFloat32, shape}), sizeof(float));
}

MatrixProduct product_of(const EinsumTerms& terms, const EinsumForm& form) {
  const auto count = [&](const Labels& labels) { return label_shape(terms, labels).numel(); };
  MatrixProduct p;
  if (!form.batch.empty()) p.batch_a = p.batch_b = {count(form.batch)};
  p.rows = count(form.rows);
  p.inner = count(form.inner);
  p.columns = count(form.columns);
  p.transpose_a = form.transpose_a;
  p.transpose_b = form.transpose_b;
  return p;
}

}  // namespace

bool accepts_einsum_matrices(const Problem& p) {
  if (!p.all_dtype(DType::kFloat32) || !p.all_plain()) return false;
  const auto shapes = operand_shapes(p.inputs);
  const EinsumTerms terms = einsum_terms(p.attributes, shapes);
  const EinsumForm form = einsum_form(terms, shapes);
  return form.possible && onednn_accepts(product_of(terms, form));
}

std::unique_ptr<Kernel> create_einsum_matrices(const Problem& p) {
  const auto shapes = operand_shapes(p.inputs);
  const EinsumTerms terms = einsum_terms(p.attributes, shapes);
  const EinsumForm form = einsum_form(terms, shapes);
  const MatrixProduct product = product_of(terms, form);
  const std::array<std::optional<StridedCopy>, 3> copies = {
      relayout(terms, terms.inputs[0], form.a), relayout(terms, terms.inputs[1], form.b),
      relayout(terms, form.y, terms.output)};
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

}  // namespace ofsdp::kernels::ops
