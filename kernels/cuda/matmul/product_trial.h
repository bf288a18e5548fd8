// Operands of random values, and a number by which two results of the same size are told apart, for
// the trial of a product's algorithms (product_choice.h).
//
// Ownership: the caller's memory. Threads: any. Errors: those of the launch.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// `count` elements of float32, float16 or bfloat16: uniform in (-1, 1), the same for the same seed.
// Zeros would not do: a card multiplies them faster than numbers, and unlike algorithms alike.
cudaError_t fill_random(DType dtype, void* data, int64_t count, uint32_t seed, cudaStream_t stream);

// Adds to *digest a number of `words` words of four bytes and their places, in whatever order.
cudaError_t add_digest(const void* data, int64_t words, unsigned long long* digest,
                       cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
