// Losses that are a mean over two tensors of one shape, and their gradients: the squared difference, and the cross entropy
// of a logit and a probability; kernels/ops/loss/mean_loss.cpp has the formulas.
//
// prediction, target, gradient: `numel` float32; loss, diff_loss: one float32. Losses are added in double, blocks of 4096
// elements and then the blocks, in one order. Memory: both operands once; the gradient once more.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

enum class MeanLoss { kSquares, kLogits };

size_t mean_loss_scratch(int64_t numel);
cudaError_t mean_loss(MeanLoss kind, const float* prediction, const float* target, int64_t numel,
                      float* loss, void* scratch, cudaStream_t stream);
cudaError_t mean_loss_grad(MeanLoss kind, const float* diff_loss, const float* prediction,
                           const float* target, int64_t numel, float* gradient,
                           cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
