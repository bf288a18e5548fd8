// LAMB's step, once `m` and `v` are advanced (library/optimizers.cu): squared norms of each parameter and
// of its direction d, and p -= lr |p| / |d| d. The arithmetic is kernels/optimizers/lamb.cpp's, operation
// by operation, but for the order of the sums: over blocks of 4096 elements, by one thread block each in
// a fixed order, then over a part's blocks in a fixed order. No atomics: the same bits in every run.
//
// The parts of a shard go by kernel arguments, kMostLambParts a launch: one pass over the shard for the
// squares, one for the step, however many parameters lie in it. d is not stored but computed twice.
//
// Memory of an element: 12 bytes for the squares, 16 for the step.
// Ownership: views. Threads: one a device. Errors: those of the launch.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

inline constexpr int kMostLambParts = 96;

// Two numbers for every block of a launch.
cudaError_t add_lamb_squares(const ofsdp_optimizer_settings& settings,
                             const ofsdp_parameter_parts& parts, cudaStream_t stream);
cudaError_t take_lamb_step(const ofsdp_optimizer_settings& settings,
                           const ofsdp_parameter_parts& parts, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
