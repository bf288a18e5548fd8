// Losses that are the mean of a function of two tensors of one shape: ofsdp.MseLoss,
// ofsdp.BceWithLogitsLoss. Their kernels sum blocks of kMeanBlock elements in double, each block on
// one thread, and then the blocks in order, so threads change no bits. The mean of no elements is
// 0.
//
// Ownership: values. Threads: run fans out over the pool.
#pragma once

#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// (prediction, target) -> a scalar.
Result<std::vector<TensorDesc>> infer_mean_loss(const InferContext& c);
// (dloss, prediction, target) -> like the prediction.
Result<std::vector<TensorDesc>> infer_mean_loss_grad(const InferContext& c);

bool accepts_mean_loss(const Problem& p);  // float32, shapes and layouts the same

using SumSpan = double (*)(const float* prediction, const float* target, int64_t n);
std::unique_ptr<Kernel> mean_loss_kernel(const Problem& p, SumSpan span);

// diff[i] = scale * f'(prediction[i], target[i]); scale is dloss / elements.
using DiffSpan = void (*)(float scale, const float* prediction, const float* target, float* diff,
                          int64_t n);
std::unique_ptr<Kernel> mean_loss_grad_kernel(const Problem& p, DiffSpan span);

template <typename F>
std::vector<RefTensor> mean_loss_reference(const ReferenceContext& c, const F& f) {
  const size_t n = c.inputs[0].values.size();
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += f(c.inputs[0].values[i], c.inputs[1].values[i]);
  return {{c.output_descs[0], {n == 0 ? 0 : sum / static_cast<double>(n)}}};
}

template <typename F>
std::vector<RefTensor> mean_loss_grad_reference(const ReferenceContext& c, const F& f) {
  RefTensor diff{c.output_descs[0], {}};
  const size_t n = c.inputs[1].values.size();
  for (size_t i = 0; i < n; ++i) {
    diff.values.push_back(c.inputs[0].values[0] / static_cast<double>(n) *
                          f(c.inputs[1].values[i], c.inputs[2].values[i]));
  }
  return {diff};
}

std::vector<SampleCase> mean_loss_samples();
std::vector<SampleCase> mean_loss_grad_samples();

}  // namespace ofsdp::kernels::ops
