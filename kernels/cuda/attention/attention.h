// Attention and its gradient where cuDNN is absent or declines: plain and right, for any mask;
// kernels/cpu/attention.h has the formulas and the meaning of every member. Not fast: products run
// on the CUDA cores in float32.
//
// q, k, v, y of `dtype` (float32, float16, bfloat16) by strides; heads of up to 256 wide (width and
// v_width), else cudaErrorNotSupported. Scores are never in memory: keys are walked in tiles of 32
// with a running maximum (Dao et al., "FlashAttention", 2022), the gradient makes them again from
// two numbers a query: the log-sum-exp of its masked scores, in the natural base, which the forward
// pass may keep, and delta, the sum of p dp. With what was kept (y and statistics) delta is the sum
// of dy y, one pass over both (attention_delta); without, both are found by walking the keys once
// more. dk and dv of a key head are summed over its query heads and queries in their order.
//
// A query that sees no key gets zeros and statistics of +infinity, and gives none whatever its
// statistics are.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct HeadStrides {
  int64_t batch = 0, head = 0, row = 0;  // in elements; columns are dense
};
enum class MaskKind { kNone, kBool, kFloat };  // kFloat: of `dtype`, added

struct AttentionExtent {
  DType dtype = DType::kFloat32;
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, width = 0, v_width = 0;
  HeadStrides q, k, v, y;
  float scale = 1, softcap = 0;
  bool causal = false;
  int64_t left = -1, right = -1;     // window; -1: open
  int64_t offset = 0;                // position of the first query, where lengths is null
  const int64_t* lengths = nullptr;  // device memory, keys that are there of each sample; null: all
  MaskKind mask_kind = MaskKind::kNone;
  const void* mask = nullptr;
  int64_t mask_strides[4] = {};  // of sample, head, query, key
  int64_t mask_keys = 0;         // keys from there on are masked
  Fault fault = {};              // of lengths
};

// statistics: float [batch, heads, queries]; null: not wanted.
cudaError_t attention(const AttentionExtent& e, const void* q, const void* k, const void* v,
                      void* y, float* statistics, cudaStream_t stream);

struct AttentionGradient {
  const void *dy = nullptr, *q = nullptr, *k = nullptr, *v = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  void* dmask = nullptr;  // [batch, heads, queries, mask_keys] of dtype; null: not wanted
  void* scratch = nullptr;
  // Kept by the forward pass: both, or null.
  const void* y = nullptr;
  HeadStrides y_strides = {};
  const float* statistics = nullptr;
};
size_t attention_grad_scratch(const AttentionExtent& e, bool kept);
cudaError_t attention_grad(const AttentionExtent& e, const AttentionGradient& g,
                           cudaStream_t stream);

// The sum of dy y of each query, which is that of p dp: what the gradients of
// kernels/cuda/attention/attention.h and of kernels/cuda/attention/tensor_attention.h need besides
// the statistics that a forward pass kept (Dao, "FlashAttention-2", 2023).
//
// delta: float [batch, heads, queries]. Sums in float32, by the columns of eight lanes, then over
// the lanes; the same bits twice. Memory: dy and y once.
cudaError_t attention_delta(const AttentionExtent& e, const AttentionGradient& g, float* delta,
                            cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
