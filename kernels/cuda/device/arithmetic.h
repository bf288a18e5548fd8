// Launchers of the step's arithmetic that is no node: the update's numbers, conversions and sums of
// gradients, the norm, clipping. Meaning and operands: kernels/core/device.h.
//
// cudaErrorNotSupported: a dtype other than float32, float16 and bfloat16.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/core/device_values.h"

namespace ofsdp::kernels::cuda {

cudaError_t begin_update(ofsdp_run_state* state, const ofsdp_step_numbers* numbers, bool update,
                         bool scales, cudaStream_t stream);
cudaError_t note_loss(ofsdp_run_state* state, const float* loss, bool stops, cudaStream_t stream);
cudaError_t convert(const void* src, int32_t from, void* dst, int32_t to, int64_t n,
                    cudaStream_t stream);
cudaError_t add_onto(const void* src, int32_t from, float* dst, int64_t n, cudaStream_t stream);
cudaError_t round_values(float* values, int32_t to, int64_t n, cudaStream_t stream);
cudaError_t reduce_gradient(const ofsdp_reduce& r, cudaStream_t stream);
cudaError_t clip(ofsdp_run_state* state, double most, bool scales, cudaStream_t stream);
cudaError_t mark(int64_t* pinned, int64_t value, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
