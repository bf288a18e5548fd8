// Shared by Attention and the gradient: their operands as kernels/cpu/attention.h takes them, from
// their shapes or from their layouts (kernels/core/head_layout.h).
#pragma once

#include <algorithm>

#include "kernels/base/budgets.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// Inputs of Attention; AttentionGrad's follow dy. Absent k and v lie in q.
struct AttentionInputs {
  TensorDesc q, k, v, mask;
  bool lengths = false;
  int64_t past = 0;  // keys of the past, if k does not hold them yet
};

Status check_attention(const AttentionInputs& in, const Attributes& attributes);

// k and v hold all keys, past ones included, with the strides of `in`.
AttentionShape attention_shape(const AttentionInputs& in, const Attributes& attributes);

// The shape of Y. REQUIRES: check_attention has passed.
Shape result_shape(const AttentionInputs& in, const AttentionShape& s,
                   const Attributes& attributes);

// Returns an error unless the attribute is absent, or four axes with the last one 3.
Status check_rows_perm(const Attributes& attributes, const char* name);

Status check_lengths(const AttentionShape& s, const int64_t* lengths);  // one a sample

// Returns the strides of the heads in the Y that ofsdp.AttentionGrad reads: the strides of dY, or,
// with y_perm, of [B, heads, queries, width] after that Transpose.
HeadStrides kept_strides(const AttentionShape& s, const Attributes& attributes);

// Plain loops in double: calls f(b, h, query, raw scores, capped, masked, probabilities) for all
// [batch, heads, queries].
struct AttentionRow {
  int64_t b = 0, h = 0, kv = 0, query = 0;
  std::vector<double> raw = {}, capped = {}, masked = {}, probability = {};
};
void reference_attention(const AttentionShape& s, const std::vector<double>& q,
                         const std::vector<double>& k, const RefTensor* mask,
                         const RefTensor* lengths,
                         const std::function<void(const AttentionRow&)>& f);
// Adds the row to Y; `at`: the strides of the heads in Y. REQUIRES: the row of Y is 0.
void add_attention_row(const AttentionShape& s, const HeadStrides& at, const AttentionRow& row,
                       const std::vector<double>& v, std::vector<double>& y);
double log_sum_exp(const std::vector<double>& masked);  // infinity if the query sees no key

// Returns the input that holds K or V: its own, or Q's if it is absent.
inline size_t held_by(const Problem& p, size_t own, size_t queries) {
  return p.has_in(own) ? own : queries;
}
inline size_t held_by(const std::vector<RefTensor>& inputs, size_t own, size_t queries) {
  return given(inputs, own) != nullptr ? own : queries;
}

// Accepts plain operands, the first `count` inputs of type T but for a bool mask and int64 lengths.
template <typename T>
Acceptance accepts_attention(const Problem& p, const AttentionShape& s, size_t count, size_t mask,
                             size_t lengths) {
  for (size_t i = 0; i < std::min(p.inputs.size(), count); ++i) {
    const DType found = p.in(i).dtype;
    const bool right = found == dtype_of<T>() || (i == mask && found == DType::kBool) ||
                       (i == lengths && found == DType::kInt64);
    if (p.has_in(i) && !right) return Acceptance::refuse(not_of_type<T>());
  }
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  if (s.queries > kMaxQueries) {
    return Acceptance::refuse("more queries than are cut into blocks");
  }
  return accept_if(AttentionKernel<T>::is_available(),
                   "a type that this processor does not multiply");
}

}  // namespace ofsdp::kernels::ops
