// fastest_candidate: the algorithm that a product takes, of those that cuBLASLt's heuristic offers:
// the fastest on random operands.
//
// [Note: the same bits] Where bits may not vary from run to run, only those stand for election that
// give the bits of the first that runs in all that the product writes: algorithms that add along
// the inner axis in the same order, with other tiles. So the choice, which timing makes and another
// run may make otherwise, changes no result.
//
// Ownership: operands are made and freed here. Threads: the device's. Errors: without memory for
// the operands, the first.
#pragma once

#include <functional>

#include "kernels/cuda/matmul/product.h"

namespace ofsdp::kernels::cuda {

// Multiplications of a product from which a trial is worth its time: below it most of a product is
// its launch.
inline constexpr int64_t kMinTried = int64_t{1} << 28;

// Candidate `i` on the legacy stream; whether it could be launched.
using RunCandidate = std::function<bool(int i, const ProductOperands& operands)>;

// workspace: bytes that every candidate finds enough.
int fastest_candidate(const ProductShape& shape, int count, bool may_vary, size_t workspace,
                      const RunCandidate& run);

}  // namespace ofsdp::kernels::cuda
