// Turns the operands of Attention and its gradient into the AttentionShape that
// kernels/cpu/attention.h takes. Shapes or layout attributes (kernels/core/planned_operands.h) say
// where the heads lie.
#pragma once

#include <algorithm>

#include "kernels/base/budgets.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// Attention's inputs; AttentionGrad has them after dY. If k or v is absent, q's tensor holds it.
struct AttentionInputs {
  TensorDesc q, k, v, mask;
  bool lengths = false;  // there is an input with the number of valid keys per sample
  int64_t past = 0;      // keys in the past
};

// Returns kInput if the operands do not fit. Takes in.k and in.v as the node has them, without the
// past.
Status check_attention(const AttentionInputs& in, const Attributes& attributes);

// Returns the shape, with strides by the layouts of the operands. The caller has first widened in.k
// and in.v to all keys, past ones included; in.past then tells only where the queries begin.
AttentionShape attention_shape(const AttentionInputs& in, const Attributes& attributes);

// Returns Y's shape. REQUIRES: check_attention has passed.
Shape result_shape(const AttentionInputs& in, const AttentionShape& s,
                   const Attributes& attributes);

// Returns an error unless attribute `name` is absent or permutes four axes and keeps axis 3 last.
Status check_rows_perm(const Attributes& attributes, const char* name);

// Returns kInput unless all lengths, [batch], are in 0 .. keys.
Status check_lengths(const AttentionShape& s, const int64_t* lengths);

// Returns the head strides in the Y that ofsdp.AttentionGrad reads. Y lies like dY, or, if y_perm
// is set, like the result of Transpose(perm = y_perm) of [B, heads, queries, width].
HeadStrides kept_strides(const AttentionShape& s, const Attributes& attributes);

// One query in the reference: scores (raw, after softcap, after masks) and probabilities, one
// per key. `kv` is the key head that head h reads.
struct AttentionRow {
  int64_t b = 0, h = 0, kv = 0, query = 0;
  std::vector<double> raw = {}, capped = {}, masked = {}, probability = {};
};
// Calls f for each row in [batch, heads, queries]; plain loops in double.
void reference_attention(const AttentionShape& s, const std::vector<double>& q,
                         const std::vector<double>& k, const RefTensor* mask,
                         const RefTensor* lengths,
                         const std::function<void(const AttentionRow&)>& f);
// Adds the row's output to y; `at` are the head strides in y. REQUIRES: that row in y is 0.
void add_attention_row(const AttentionShape& s, const HeadStrides& at, const AttentionRow& row,
                       const std::vector<double>& v, std::vector<double>& y);
double log_sum_exp(const std::vector<double>& masked);  // +infinity if the query sees no key

// Returns the input that holds K or V: input `own`, or Q if that is absent.
inline size_t held_by(const Problem& p, size_t own, size_t queries) {
  return p.has_in(own) ? own : queries;
}
inline size_t held_by(const std::vector<RefTensor>& inputs, size_t own, size_t queries) {
  return given(inputs, own) != nullptr ? own : queries;
}

// Accepts plain operands if the first `count` inputs have type T. `mask` and `lengths` are indices
// of inputs: the mask may be bool, lengths int64.
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
