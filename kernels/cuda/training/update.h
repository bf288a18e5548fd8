// What happens to gradients on the device: sums, squared norm, clip factor, loss scale and the optimizers, without the host.
//
// StepInput is written by the host (an asynchronous copy) before each update; UpdateState stays on the device and is read
// back whenever somebody wants to know. The order in a step: put_loss_weight, backward, sum_gradients, squared_norm of each
// unit, finish_norm once, update of each unit. The arithmetic is that of runtime/engine/executor_gradients.cpp, runtime/engine/loss_scale.h
// and kernels/optimizers/*, operation by operation, so an update gives the CPU's bits where the gradient has them; only
// powers of beta may differ in the last bit of a double.
//
// Memory of an element, beside the gradient and the low-precision copy: adamw and adam 24 bytes, adadelta 24, adagrad, lion
// and sgd with momentum 16, sgd 8.
#pragma once

#include "kernels/core/optimizer.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct StepInput {
  double lr = 0;
  int64_t step = 1;       // this update's number, from 1, skipped ones counted
  float loss_weight = 1;  // of the micro-batch
};

struct UpdateState {
  double global_norm = 0;    // before clipping, unscaled
  double loss_scale = 1;     // for the next backward
  int64_t good_updates = 0;  // in a row
  int64_t skipped_updates = 0;
  float gradient_factor = 1;  // clip factor over loss scale
  int32_t skip = 0;           // 1: gradients are not finite and nothing is updated
};

// *loss_weight = input->loss_weight * the loss scale: where backward begins.
cudaError_t put_loss_weight(const StepInput* input, const UpdateState* state, float* loss_weight,
                            cudaStream_t stream);

// out = (sum over slots, in their order, rounded to round_to) + kept. kept null: none; it may be out.
inline constexpr int kMostSlots = 16;
struct GradientSum {
  const void* slots[kMostSlots] = {};  // device memory that this device can read, of `dtype`
  int count = 0;
  DType dtype = DType::kFloat32;
  DType round_to = DType::kFloat32;
  const float* kept = nullptr;
  float* out = nullptr;
  int64_t numel = 0;
};
cudaError_t sum_gradients(const GradientSum& s, cudaStream_t stream);

// partials[0 .. count) become sums of squares, in double, of parts of a gradient of `dtype`; the caller lays the partials
// of its units side by side.
int64_t squared_norm_partials(int64_t numel);
cudaError_t squared_norm(DType dtype, const void* gradient, int64_t numel, double* partials,
                         cudaStream_t stream);
// out = the sum of all partials in order: this rank's part of the squared norm.
cudaError_t add_partials(const double* partials, int64_t count, double* out, cudaStream_t stream);

// From the ranks' squared norms (in rank order): norm, clip factor, skip and the next loss scale.
// clip_norm 0: no clipping. scale_loss: dynamic loss scale.
cudaError_t finish_norm(const double* squares, int ranks, double clip_norm, bool scale_loss,
                        UpdateState* state, cudaStream_t stream);

enum class OptimizerKind { kAdamW, kAdam, kSgd, kAdadelta, kAdagrad, kLion };

// One update of a span of a shard. State tensors in the order of the optimizer's state_names.
struct OptimizerUpdate {
  OptimizerKind kind = OptimizerKind::kAdamW;
  OptimizerSettings settings = {};
  double weight_decay = 0;  // of this span
  float* param = nullptr;   // master weights
  float* state[2] = {};
  const void* gradient = nullptr;
  DType gradient_dtype = DType::kFloat32;
  void* copy = nullptr;  // param rounded to copy_dtype; null: not wanted
  DType copy_dtype = DType::kBFloat16;
  int64_t numel = 0;
  const StepInput* input = nullptr;
  const UpdateState* update_state = nullptr;
};
cudaError_t update(const OptimizerUpdate& u, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
