// Attention and its gradient on tensor cores: float16 and bfloat16, heads up to 128 wide, without
// softcap; else takes_tensor_attention says no and kernels/cuda/attention/attention.h is there,
// whose arguments and meaning these have.
//
// Dao, "FlashAttention-2" (2023): a block has a tile of queries (of keys, for dk and dv), its warps
// 16 or 32 rows each, and walks tiles of the others; scores are in registers alone. Products are
// exact with float32 sums; softmax, its maximum and sums are float32. Probabilities and slopes of
// scores are rounded to the dtype where they become factors, as the CPU does. The gradient makes
// the scores again from two numbers a query, log-sum-exp and the sum of p dp: kept and one pass
// over dy and y, or found by walking the keys once more (attention.h).
//
// Sums: of a row's exponentials, and of y, dq, by tiles of keys in rising order; of dk and dv by
// query heads, then tiles of queries. No atomics: two runs give the same bits.
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace ofsdp::kernels::cuda {

bool takes_tensor_attention(const AttentionExtent& e);

cudaError_t tensor_attention(const AttentionExtent& e, const void* q, const void* k, const void* v,
                             void* y, float* statistics, cudaStream_t stream);

size_t tensor_attention_grad_scratch(const AttentionExtent& e, bool kept);
cudaError_t tensor_attention_grad(const AttentionExtent& e, const AttentionGradient& g,
                                  cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
