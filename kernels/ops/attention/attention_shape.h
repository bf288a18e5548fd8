// What Attention and its gradient share: their operands as kernels/cpu/attention.h takes them.
// Ownership: values. Threads: any. Errors: kInput from infer.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// Inputs of Attention; AttentionGrad's are behind dy.
struct AttentionInputs {
  TensorDesc q, k, v, mask;
  bool lengths = false;
  int64_t past = 0;  // keys of the past, when k does not hold them yet
};

Status check_attention(const AttentionInputs& in, const Attributes& attributes);

// k and v hold all keys, those of the past included (their strides are those of `in`).
AttentionShape attention_shape(const AttentionInputs& in, const Attributes& attributes);

Status check_lengths(const AttentionShape& s, const int64_t* lengths);  // one a sample

// Where the heads of the Y lie that ofsdp.AttentionGrad reads: as in dY, or with y_perm as Transpose
// lays [B, heads, queries, width].
HeadStrides kept_strides(const AttentionShape& s, const Attributes& attributes);

// Plain loops in double. Probabilities and what leads to them, for all [batch, heads, queries]:
// f(b, h, query, raw scores, capped, masked, probabilities).
struct AttentionRow {
  int64_t b, h, kv, query;
  std::vector<double> raw, capped, masked, probability;
};
void reference_attention(const AttentionShape& s, const std::vector<double>& q,
                         const std::vector<double>& k, const RefTensor* mask,
                         const RefTensor* lengths,
                         const std::function<void(const AttentionRow&)>& f);
// The row of Y, whose heads lie at `at`, which is 0 before.
void add_attention_row(const AttentionShape& s, const HeadStrides& at, const AttentionRow& row,
                       const std::vector<double>& v, std::vector<double>& y);
double log_sum_exp(const std::vector<double>& masked);  // infinity where nothing is seen

}  // namespace ofsdp::kernels::ops
