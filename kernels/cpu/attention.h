// Scaled dot-product attention in float, bfloat16 or double, and its gradient, without a full score
// matrix.
//
// A block of queries at a time meets all keys it may see: scores = scale q K^T, softcap, mask,
// softmax, times V. A block holds at most kBlockScores scores, which stay in a core's cache. It has
// whole rows, so softmax needs no running maximum, and the gradient recomputes the same
// probabilities with the same bits instead of reading saved ones. (FlashAttention, Dao et al. 2022,
// splits the keys too, because a GPU's fast memory is a hundred times smaller.)
//
//   dV = P^T dY, dP = dY V^T, dS = P (dP - rowsum(P dP)), through softcap times 1 - tanh^2,
//   dQ = scale dS K, dK = scale dS^T Q
//
// bfloat16 products take bfloat16 factors and give float results: scores, softmax and gradient are
// float; probabilities and dS are rounded once they become factors, dK and dV once they are
// complete. The products apply the scale, because scaled queries would be rounded again.
//
// Heads in a batch are independent. One thread sums dK and dV for a key head over query heads and
// blocks in a fixed order, so threads change no bits. Nor do head strides: keys and values become
// dense in the cache. A query that may see no key gets zeros. Kernels own products and offsets;
// operands are views. forward and backward fan out over the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/core/planned_operands.h"
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
  int64_t offset = 0;             // first query's position; if `padded`, in sample b
  bool padded = false;            // lengths[b] - queries, and keys from lengths[b] on are absent
  MaskKind mask = MaskKind::kNone;
  int64_t mask_strides[4] = {};  // sample, head, query, key
  int64_t mask_keys = 0;         // keys from here on are masked
};

template <typename T>
struct AttentionOperands {
  const T *q, *k, *v;  // whole tensors; HeadStrides locate the operands
  const void* mask;
  const int64_t* lengths;
  T* y;
  T* scores;  // [batch, heads, queries, keys]; null: not wanted
  // [batch, heads, queries]: max + log(sum e^(score - max)) over masked scores, infinity if a query
  // sees no key; null: not wanted. The gradient here does not read it.
  float* statistics;
  // for the gradient
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
  static bool is_available();  // whether this processor multiplies T
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
