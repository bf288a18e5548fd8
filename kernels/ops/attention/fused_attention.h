// Shared by the attention operators of ONNX Runtime: what one problem asks for, the part of their
// bodies after the projections, and the same part of their references.
//
// Values; any thread. Errors: kInput from infer.
#pragma once

#include <functional>

#include "kernels/core/standard_body.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// Queries [batch, heads, queries, width], keys and values [batch, kv_heads, keys, width, v_width].
struct FusedAttention {
  int64_t batch = 0, queries = 0, keys = 0;
  int64_t heads = 0, kv_heads = 0, width = 0, v_width = 0;
  // The scores:
  double scale = 0, softcap = 0;
  bool causal = false;
  int64_t window = 0;   // keys that a query sees, its own the last; 0: all
  double filter = 0;    // added to scores that mask_index hides
  bool smooth = false;  // one more key, of score 0 and without a value

  Shape output() const { return {batch, queries, heads * v_width}; }
  Shape scores() const { return {batch, heads, queries, keys}; }
};

// The descs of a node's inputs, of which there are at most `count`; not present(): absent.
std::vector<TensorDesc> input_descs(const BodyBuilder& b, size_t count);

// Sets the attributes that the operators share: scale, mask_filter_value, unidirectional.
void read_scores(const Attributes& attributes, FusedAttention& f);

// mask_index in all forms: lengths [B]; ends and starts [2 B]; lengths, then cumulated lengths
// [3 B + 2]; keys [B, keys] ([B, 1] and [1, 1]: no mask); [B, queries, keys]; [B, 1, M, M].
Status check_mask_index(const TensorDesc& mask, const FusedAttention& f);
Status check_bias(const TensorDesc& bias, const FusedAttention& f);  // attention_bias
// The past must be fed empty: `past` is absent, or has no rows along `axis`.
Status check_no_past(const TensorDesc& past, int axis, const char* name);

// Operands of the body; masks are none or broadcast to the scores.
struct AttentionRefs {
  Ref q, k, v;     // [B, heads, rows, width]
  Ref mask_index;  // as given
  Ref bias;        // attention_bias
  Ref seqlens;     // valid keys less one [B]: later keys are not there
  Ref sink;        // score of one more key of each head [heads]
};

// [B, rows, heads width] as [B, heads, rows, width].
Ref split_heads(BodyBuilder& b, Ref x, int64_t heads);
// Emits the attention; returns [B, queries, heads v_width].
Ref attend(BodyBuilder& b, const FusedAttention& f, const AttentionRefs& refs);

// The element of a head: (sample, head, row, column).
using HeadElement = std::function<double(int64_t, int64_t, int64_t, int64_t)>;

// Operands of the reference. Null: absent.
struct AttentionTensors {
  HeadElement q, k, v;
  const RefTensor *mask_index, *bias, *seqlens, *sink;
};
RefTensor reference_attend(const FusedAttention& f, const AttentionTensors& t,
                           const TensorDesc& output);

}  // namespace ofsdp::kernels::ops
