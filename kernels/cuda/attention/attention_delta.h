// The sum of dy y of each query, which is that of p dp: what the gradients of kernels/cuda/attention/attention.h and of
// kernels/cuda/attention/tensor_attention.h need beside the statistics that a forward pass kept (Dao, "FlashAttention-2", 2023).
//
// delta: float [batch, heads, queries]. Sums in float32, by the columns of eight lanes, then over the lanes; the same bits twice.
// Memory: dy and y once.
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace ofsdp::kernels::cuda {

cudaError_t attention_delta(const AttentionExtent& e, const AttentionGradient& g, float* delta,
                            cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
