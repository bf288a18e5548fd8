// The attention operators that ONNX Runtime's optimizers and model builders write. None has a
// kernel: each body is ONNX's Attention between projections, rotations and masks. They share the
// description of a problem, the body after the projections, that part of the references, and checks
// for infer.
//
// The past must be empty (importer/passes/model_inputs.h), so present is k and v. If mask_index
// hides a score, mask_filter_value is added to it; causality and seqlens_k make it minus infinity.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#pragma once

#include <functional>

#include "kernels/core/op_def.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// Queries are [batch, heads, queries, width], keys [batch, kv_heads, keys, width], values
// [batch, kv_heads, keys, v_width].
struct FusedAttention {
  int64_t batch = 0, queries = 0, keys = 0;
  int64_t heads = 0, kv_heads = 0, width = 0, v_width = 0;
  double scale = 0, softcap = 0;
  bool causal = false;
  int64_t window = 0;   // keys that a query sees, up to the same position; 0: all
  double filter = 0;    // added to scores that mask_index hides
  bool smooth = false;  // one more key, with score 0 and no value

  Shape output() const { return {batch, queries, heads * v_width}; }
  Shape scores() const { return {batch, heads, queries, keys}; }
};

// Returns the descs of at most `count` inputs; absent ones are not present().
std::vector<TensorDesc> input_descs(const BodyBuilder& b, size_t count);

// Reads the attributes that all operators share: scale, mask_filter_value, unidirectional.
void read_scores(const Attributes& attributes, FusedAttention& f);

// Accepts every form of mask_index: lengths [B]; ends and starts [2 B]; lengths, then cumulated
// lengths [3 B + 2]; keys [B, keys] ([B, 1] and [1, 1] mean no mask); [B, queries, keys]; [B, 1, M,
// M].
Status check_mask_index(const TensorDesc& mask, const FusedAttention& f);
Status check_bias(const TensorDesc& bias, const FusedAttention& f);  // attention_bias
// Returns an error unless `past` is absent or has no rows along `axis`.
Status check_no_past(const TensorDesc& past, int axis, const char* name);

// The body's operands; masks are none or broadcast to the scores.
struct AttentionRefs {
  Ref q, k, v;     // [B, heads, rows, width]
  Ref mask_index;  // as given
  Ref bias;        // attention_bias
  Ref seqlens;     // valid keys minus one [B]; hides later keys
  Ref sink;        // score of one more key, per head [heads]
};

// Returns [B, rows, heads width] as [B, heads, rows, width].
Ref split_heads(BodyBuilder& b, Ref x, int64_t heads);
// Emits the attention and returns the output [B, queries, heads v_width].
Ref attend(BodyBuilder& b, const FusedAttention& f, const AttentionRefs& refs);

// Returns a head's element at (sample, head, row, column).
using HeadElement = std::function<double(int64_t, int64_t, int64_t, int64_t)>;

// The reference's operands; null if absent.
struct AttentionTensors {
  HeadElement q, k, v;
  const RefTensor *mask_index, *bias, *seqlens, *sink;
};
RefTensor reference_attend(const FusedAttention& f, const AttentionTensors& t,
                           const TensorDesc& output);

// Checks for infer: errors name the input or attribute, expected and found.

using Descs = std::vector<TensorDesc>;

Status expect_rank(const TensorDesc& x, int rank, const char* name);
Status expect_shape(const TensorDesc& x, const Shape& shape, const char* name);  // if present
Status expect_attribute(const Attributes& attributes, const char* name, int64_t expected);
Status refuse_output(const InferContext& c, size_t output, const char* name);
// Returns the attribute, or an error unless it divides `columns`.
Result<int64_t> heads_of(const Attributes& attributes, const char* name, int64_t columns);

// Returns the descs of output, present key and present value.
Descs outputs_of(const FusedAttention& f, DType dtype);
void set_presents(BodyBuilder& b, const AttentionRefs& refs);

// Reads heads from x [B, rows, columns]; they begin at column `first`.
HeadElement heads_in_rows(const RefTensor& x, int64_t first, int64_t width);
// Returns the output with present key and value, [B, heads, rows, width].
std::vector<RefTensor> with_presents(const ReferenceContext& c, RefTensor y,
                                     const AttentionTensors& t);

void add_without_kernel(Registry& registry, const char* name, const OpFunctions& functions,
                        OpDef rest);
void add_packed_attention(Registry& registry);
void add_multi_head_attention(Registry& registry);
void add_group_query_attention(Registry& registry);

}  // namespace ofsdp::kernels::ops
