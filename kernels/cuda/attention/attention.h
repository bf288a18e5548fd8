// Launchers for attention and rotary position embeddings. kernels/cpu/attention.h has the formulas.
//
// --- Attention on CUDA cores, for any mask: the fallback if tensor cores and cuDNN decline.
// Float32 products, slow.
//
// q, k, v, y: `dtype` (float32, float16, bfloat16), addressed by strides. Heads wider than 256
// (width or v_width) return cudaErrorNotSupported. Scores never reach memory: a warp iterates over
// tiles of 32 keys with an online softmax (Dao et al., "FlashAttention", 2022). The backward pass
// recomputes scores from two numbers per query: `statistics`, the natural log-sum-exp over masked
// scores, and delta = sum_j p_j dp_j. If the forward pass saved y and statistics, delta = dot(dy,
// y) (attention_delta); otherwise another pass over the keys computes both. dk and dv sum over
// query heads, then queries, in order.
//
// A query without visible keys gets y = 0 and statistics = +infinity, and contributes no gradient.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct HeadStrides {
  int64_t batch = 0, head = 0, row = 0;  // in elements; columns are contiguous
};
enum class MaskKind { kNone, kBool, kFloat };  // kFloat: `dtype`, added to scores

struct AttentionParams {
  DType dtype = DType::kFloat32;
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, width = 0, v_width = 0;
  HeadStrides q, k, v, y;
  float scale = 1, softcap = 0;
  bool causal = false;
  int64_t left = -1, right = -1;     // sliding window; -1: unlimited
  int64_t offset = 0;                // position of the first query if lengths is null
  const int64_t* lengths = nullptr;  // device memory, valid keys per sample; null: all
  MaskKind mask_kind = MaskKind::kNone;
  const void* mask = nullptr;
  int64_t mask_strides[4] = {};  // sample, head, query, key
  int64_t mask_keys = 0;         // later keys are masked
  Fault fault = {};              // for invalid lengths
  // Device memory, [batch]: samples with 0 are left out, and their outputs stay; null: none is.
  const int32_t* wanted = nullptr;
};

// statistics: float32 [batch, heads, queries], or null if not needed.
cudaError_t attention(const AttentionParams& e, const void* q, const void* k, const void* v,
                      void* y, float* statistics, cudaStream_t stream);

struct AttentionGradient {
  const void *dy = nullptr, *q = nullptr, *k = nullptr, *v = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  void* dmask = nullptr;  // [batch, heads, queries, mask_keys], `dtype`; null: not needed
  void* scratch = nullptr;
  // Saved by the forward pass: both or neither.
  const void* y = nullptr;
  HeadStrides y_strides = {};
  const float* statistics = nullptr;
};
size_t attention_grad_scratch(const AttentionParams& e, bool kept);
cudaError_t attention_grad(const AttentionParams& e, const AttentionGradient& g,
                           cudaStream_t stream);

// Stores delta = dot(dy, y) per query, float32 [batch, heads, queries] (Dao, "FlashAttention-2",
// 2023). Eight lanes per query sum columns in float32, then a shuffle adds them. Reads dy and y
// once.
cudaError_t attention_delta(const AttentionParams& e, const AttentionGradient& g, float* delta,
                            cudaStream_t stream);

// --- Attention on tensor cores, with the arguments above: float16 and bfloat16, heads up to 128
// wide, no softcap. takes_tensor_attention returns false for everything else.
//
// After FlashAttention-2: a block owns a tile of queries (keys for dk and dv), 16 or 32 rows per
// warp, and iterates over tiles on the other side. Scores stay in registers. Products are exact,
// sums and softmax float32. Probabilities and score gradients are rounded to the dtype before they
// become matmul operands, as on the CPU.
//
// Sum order: key tiles ascending for softmax, y and dq; query heads, then query tiles for dk and
// dv. No atomics, so runs give the same bits.
bool takes_tensor_attention(const AttentionParams& e);

cudaError_t tensor_attention(const AttentionParams& e, const void* q, const void* k, const void* v,
                             void* y, float* statistics, cudaStream_t stream);

// Scratch: attention_grad_scratch.
cudaError_t tensor_attention_grad(const AttentionParams& e, const AttentionGradient& g,
                                  cudaStream_t stream);

// --- Masks for cuDNN (kernels/cuda/cudnn/attention_operators.cpp), of 16-bit problems ---
//
// cuDNN skips the keys after each sample's length, and adds a bias to scores. It says nothing of
// rows without visible keys. So these kernels also mark the samples, `apart`, that only the kernels
// above compute right.

// Device memory, [batch] each: the count of queries, the visible keys (all if apart), and 1 if the
// sample is apart, else 0.
struct SampleLengths {
  int32_t *queries = nullptr, *keys = nullptr, *apart = nullptr;
};

// Reads the visible keys from e.lengths, or from a mask with the same keys for all queries
// (mask_strides[2] == 0) and heads, whose head 0 is read. A sample is apart if its visible keys are
// no prefix, or fewer than `least`. A key is hidden by false or by an addend of at most
// kHiddenScore; a sample with other addends but 0 is apart.
cudaError_t sample_lengths(const AttentionParams& e, int64_t least, const SampleLengths& to,
                           cudaStream_t stream);

// The bias that takes the place of a mask: [batch, heads, rows, pitch], `dtype`.
struct MaskBias {
  int64_t batch = 1, heads = 1, rows = 1, pitch = 0;
  size_t bytes(DType dtype) const {
    return static_cast<size_t>(batch * heads * rows * pitch) * dtype_size(dtype);
  }
};
MaskBias mask_bias_shape(const AttentionParams& e);

// Stores the mask's addends in `bias`, at least half of the dtype's lowest number, which stands for
// false and for keys after mask_keys too. A sample is apart if a query sees no key with a larger
// addend. apart: [batch].
cudaError_t mask_bias(const AttentionParams& e, void* bias, int32_t* apart, cudaStream_t stream);

// Stores zeros in rows keys[b] .. e.keys - 1 of dk and dv, in all heads.
cudaError_t zero_hidden_keys(const AttentionParams& e, const int32_t* keys, void* dk, void* dv,
                             cudaStream_t stream);

// --- Rotary position embedding: rotates pairs (a, b) in the first `dim` elements of each row by
// the angle at the row's position: a' = a cos - b sin, b' = a sin + b cos. Pass -sin for the
// gradient. kernels/ops/attention/rotary_embedding.cpp explains the members.
//
// x, y: [batch, heads, steps, width], or packed [batch, steps, heads, width], `dtype` (float32,
// float16, bfloat16; computed in float32). cos, sin: [cache_rows, dim / 2], `dtype`. y may alias x.
// One thread per pair or unrotated element.
struct RotaryParams {
  DType dtype = DType::kFloat32;
  int64_t batch = 0, heads = 0, steps = 0, width = 0, dim = 0;
  bool packed = false, interleaved = false;
  int64_t cache_rows = 0;
  const int64_t* positions = nullptr;  // device memory; null: cache row b * steps + s
  int64_t count = 0;                   // positions: batch * steps, or 1 for a common offset
  Fault fault = {};                    // for positions without a cache row
};
cudaError_t rotate(const RotaryParams& e, const void* x, const void* cos, const void* sin, void* y,
                   cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
