// Scaled dot-product attention in float, bfloat16 or double, and the gradient, without the full
// matrix of scores.
//
// One block of queries at a time meets all keys it may see: scores = scale q K^T, softcap, mask,
// softmax, times V. A block holds at most kBlockScores scores, which stay in the cache of a core;
// because a block has whole rows, the softmax needs no running maximum, and the gradient computes
// the same probabilities again, with the same bits, instead of reading saved ones. (FlashAttention,
// Dao et al. 2022, splits the keys too, because a GPU's fast memory is a hundred times smaller.)
//
//   dV = P^T dY, dP = dY V^T, dS = P (dP - rowsum(P dP)), through softcap times 1 - tanh^2,
//   dQ = scale dS K, dK = scale dS^T Q
//
// For bfloat16 the products have bfloat16 factors and float results: scores, softmax and its
// gradient are float, probabilities and dS are rounded where they become factors, dK and dV if
// they are whole. The scale then goes into the products, because scaled queries would be rounded
// again.
//
// Heads of one batch are independent; dK and dV of a key head are summed over its query heads and
// blocks in one order on one thread, so threads change no bits. Nor do the strides of the heads:
// their keys and values are made dense in the cache. A query that may see no key gets zeros.
// Kernels own products and offsets; operands are views. `run` fans out over the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/core/head_layout.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {

// [B, S, heads * width] if packed, else [B, heads, S, width].
inline HeadStrides head_strides(int64_t heads, int64_t rows, int64_t width, bool packed) {
  if (packed) return {rows * heads * width, width, heads * width};
  return {heads * rows * width, rows * width, width};
}

enum class MaskKind { kNone, kBool, kFloat };
enum class ScoresOutput { kRaw, kCapped, kMasked, kProbabilities };  // ONNX's modes

struct AttentionShape {
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, width = 0, v_width = 0;
  HeadStrides q, k, v, y;
  double scale = 1, softcap = 0;
  bool causal = false;
  int64_t left = -1, right = -1;  // window; -1: open
  int64_t offset = 0;             // position of the first query; of sample b if `padded`:
  bool padded = false;            // lengths[b] - queries, and keys from lengths[b] on are not there
  MaskKind mask = MaskKind::kNone;
  int64_t mask_strides[4] = {};  // of sample, head, query, key
  int64_t mask_keys = 0;         // keys from there on are masked
};

template <typename T>
struct AttentionOperands {
  const T *q, *k, *v;  // tensors; HeadStrides say where in them
  const void* mask;
  const int64_t* lengths;
  T* y;
  T* scores;  // [batch, heads, queries, keys]; null: not wanted
  // [batch, heads, queries]: max + log(sum e^(score - max)) of the masked scores, infinity for a
  // query that sees no key; null: not wanted. The gradient here does not read it.
  float* statistics;
  // of the gradient
  const T* dy;
  T *dq, *dk, *dv;
  T* dmask;  // [batch, heads, queries, mask_keys]; null: not wanted
};

template <typename T>
struct AttentionPlan;

template <typename T>
class AttentionKernel {
 public:
  AttentionKernel(const AttentionShape& shape, bool backward, bool all_keys);
  static bool is_available();  // bfloat16: if the processor multiplies it
  size_t workspace_bytes() const;
  void forward(const AttentionOperands<T>& o, ScoresOutput mode, std::byte* workspace) const;
  void backward(const AttentionOperands<T>& o, std::byte* workspace) const;

 private:
  std::shared_ptr<const AttentionPlan<T>> plan_;
};

extern template class AttentionKernel<float>;
extern template class AttentionKernel<BFloat16>;
extern template class AttentionKernel<double>;

}  // namespace ofsdp::kernels
