// LAMB's step, once `m` and `v` are advanced (optimizers.h): squared norms of each parameter and of
// its direction d, and p -= lr |p| / |d| d. The arithmetic is that of kernels/optimizers/updates.h.
// The sums run over blocks of 4096 elements, by one thread block each in a fixed order, then over a
// part's blocks in a fixed order. No atomics: the same bits in every run.
//
// The parts of a shard go by kernel arguments, kMostLambParts a launch: one pass over the shard for
// the squares, one for the step, however many parameters it holds. d is not stored but computed
// twice.
//
// Memory per element: 12 bytes for the squares, 16 for the step.
// Views; nothing is owned. One thread per device. Errors: those of the launch.
#pragma once

#include "kernels/core/optimizer.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

inline constexpr int kMostLambParts = 96;

// Two numbers for every block of a launch.
cudaError_t add_lamb_squares(const OptimizerSettings& settings, const ofsdp_parameter_parts& parts,
                             cudaStream_t stream);
cudaError_t take_lamb_step(const OptimizerSettings& settings, const ofsdp_parameter_parts& parts,
                           cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
