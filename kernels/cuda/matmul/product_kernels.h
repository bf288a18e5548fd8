// Launchers of our own kernels around cuBLASLt: padded copies, random operands and digests for the
// trial of algorithms, and Einsum by loops.
#pragma once

#include "kernels/cuda/pointwise/strided_index.h"

namespace ofsdp::kernels::cuda {

// --- Copies between pitched matrices of different sizes, for products with padded extents
// (product.cpp). `size` is 2 or 4, the bytes per element.

struct PitchedMatrix {
  int64_t rows = 0, columns = 0;
  int64_t row = 0;  // pitch, in elements
};

// to[r, c] = from[r, c] where `from` has the element, else 0.
cudaError_t copy_padded(size_t size, const void* from, const PitchedMatrix& of_from, void* to,
                        const PitchedMatrix& of_to, cudaStream_t stream);

// Sets columns begin .. columns - 1 to 0.
cudaError_t clear_columns(size_t size, void* data, const PitchedMatrix& of, int64_t begin,
                          cudaStream_t stream);

// --- Random operands and result digests, to time a product's algorithms (fastest_candidate).

// Fills `count` float32, float16 or bfloat16 elements, uniform in (-1, 1), reproducible by seed.
// Not zeros: GPUs multiply zeros faster, and by a different factor for each algorithm.
cudaError_t fill_random(DType dtype, void* data, int64_t count, uint32_t seed, cudaStream_t stream);

// Adds to *digest a hash of `words` 4-byte words and their positions; the order of addition does
// not matter.
cudaError_t add_digest(const void* data, int64_t words, unsigned long long* digest,
                       cudaStream_t stream);

// --- Einsum by loops, for equations that are not a product of two matrices: diagonals, traces,
// sums over one operand, three operands.
//
// y[outer] = sum over `summed` of the product of the operands. Operands and y are float32, float16
// or bfloat16; sums are float32 in a fixed order. A thread computes a result if at most 8
// combinations are summed, else a warp. Operand 0 of both walks is y (stride 0 along `summed`),
// operands 1 .. count are the inputs.

struct EinsumParams {
  DType dtype = DType::kFloat32;
  StridedIndex outer, summed;
  int count = 1;  // inputs, at most kMaxOperands - 1
  const void* operands[kMaxOperands - 1] = {};
};
cudaError_t einsum_loops(const EinsumParams& e, void* y, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
