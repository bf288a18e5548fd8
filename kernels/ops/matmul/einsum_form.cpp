#include "kernels/ops/matmul/einsum_form.h"

namespace ofsdp::kernels::ops {
namespace {

Labels joined(std::initializer_list<Labels> lists) {
  Labels all;
  for (const Labels& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

void lay_out(const EinsumTerms& terms, EinsumForm& form) {
  form.transpose_a = terms.inputs[0] == joined({form.batch, form.inner, form.rows});
  form.transpose_b = terms.inputs[1] == joined({form.batch, form.columns, form.inner});
  form.a = form.transpose_a ? joined({form.batch, form.inner, form.rows})
                            : joined({form.batch, form.rows, form.inner});
  form.b = form.transpose_b ? joined({form.batch, form.columns, form.inner})
                            : joined({form.batch, form.inner, form.columns});
  form.y = joined({form.batch, form.rows, form.columns});
}

}  // namespace

EinsumForm einsum_form(const EinsumTerms& terms, const std::vector<Shape>& shapes) {
  EinsumForm form;
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
  lay_out(terms, form);
  return form;
}

Shape label_shape(const EinsumTerms& terms, const Labels& labels) {
  std::vector<int64_t> axes;
  for (int label : labels) axes.push_back(terms.sizes[static_cast<size_t>(label)]);
  return Shape(axes);
}

}  // namespace ofsdp::kernels::ops
