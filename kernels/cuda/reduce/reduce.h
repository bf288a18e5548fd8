// Reductions over any axes: sums (also of |x| and x^2), products, maxima, minima; the mean is a sum
// with scale 1 / count.
//
// A reduction is a list of passes [outer, n, inner] -> [outer, inner], each over one run of
// neighbouring reduced axes, the last run first; long passes over few results are cut into chunks
// and added by another pass. What lies between passes is float32 in scratch. The cut follows from
// the shape alone. x and y of float32, float16 or bfloat16. Memory: x is read once. An empty sum is
// 0, an empty product 1, an empty maximum -infinity; NaN is the maximum and the minimum.
#pragma once

#include <vector>

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

enum class ReduceKind { kSum, kSumAbs, kSumSquares, kProduct, kMax, kMin };

struct ReducePass {
  int64_t outer = 1, n = 1, inner = 1;
  int64_t chunks = 1;  // of n: the result is [outer, chunks, inner]
};
std::vector<ReducePass> plan_reduce(const std::vector<int64_t>& shape,
                                    const std::vector<bool>& reduced);

struct ReduceCall {
  ReduceKind kind = ReduceKind::kSum;
  DType dtype = DType::kFloat32;      // of x
  DType out_dtype = DType::kFloat32;  // of y: that of x, or float32
  float scale = 1;                    // y = scale * the reduction
  const void* x = nullptr;
  void* y = nullptr;
  void* scratch = nullptr;
};
size_t reduce_scratch(const std::vector<ReducePass>& passes);
cudaError_t reduce(const std::vector<ReducePass>& passes, const ReduceCall& c, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
