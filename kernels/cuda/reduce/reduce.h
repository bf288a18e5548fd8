// Reductions over any axes of float32, float16 or bfloat16: sum (also of |x| and x^2), product,
// maximum, minimum. A mean is a sum with scale 1 / count.
//
// plan_reduce makes a list of passes [outer, n, inner] -> [outer, inner], one per run of adjacent
// reduced axes, the last run first. A long pass over few results is split into chunks, which a
// further pass combines. The split depends on the shape only. Partial results are float32 in
// scratch. x is read once. Empty: sum 0, product 1, maximum -infinity, minimum infinity. NaN wins
// maximum and minimum.
#pragma once

#include <vector>

#include "kernels/cuda/pointwise/strided_index.h"

namespace ofsdp::kernels::cuda {

enum class ReduceKind { kSum, kSumAbs, kSumSquares, kProduct, kMax, kMin };

struct ReducePass {
  int64_t outer = 1, n = 1, inner = 1;
  int64_t chunks = 1;  // of n; if more than 1, the result is [outer, chunks, inner]
};
std::vector<ReducePass> plan_reduce(const std::vector<int64_t>& shape,
                                    const std::vector<bool>& reduced);

struct ReduceCall {
  ReduceKind kind = ReduceKind::kSum;
  DType dtype = DType::kFloat32;      // of x
  DType out_dtype = DType::kFloat32;  // of y: dtype or float32
  float scale = 1;                    // scales the result
  const void* x = nullptr;
  void* y = nullptr;
  void* scratch = nullptr;
};
size_t reduce_scratch(const std::vector<ReducePass>& passes);
cudaError_t reduce(const std::vector<ReducePass>& passes, const ReduceCall& c, cudaStream_t stream);

// --- Reductions not covered above: float64, int32 and int64; functions of sums; normalization;
// ReduceProd's gradient (general_reduce.cu).
//
// A warp computes a result, or a block if more than 2048 elements are reduced. Floats are summed in
// double, in a fixed order; integers wrap. x is read once; normalization reads it two or three
// times, from the cache if the reduced part is small. Slow if the last axis is not reduced:
// adjacent threads then read distant elements.

struct GeneralReduceParams {
  DType dtype = DType::kFloat32;
  StridedIndex kept, reduced;  // axes of x: result axes, reduced axes
};
// A kept.rank of -1 means too many axes.
GeneralReduceParams general_reduce_params(DType dtype, const std::vector<int64_t>& shape,
                                          const std::vector<bool>& reduced);

enum class GeneralReduceKind {
  kSum,
  kMean,
  kSumAbs,
  kSumSquares,
  kNorm,
  kProduct,
  kMax,
  kMin,
  kLogSum,
  kLogSumExp
};
// Returns whether `fold` computes the kind for the dtype:
//
//   float64                      all kinds
//   int32, int64                 kSum, kSumAbs, kSumSquares, kProduct, kMax, kMin
//   float32, float16, bfloat16   kNorm, kLogSum, kLogSumExp
bool has_general_reduce(GeneralReduceKind kind, DType dtype);
cudaError_t fold(GeneralReduceKind kind, const GeneralReduceParams& e, const void* x, void* y,
                 cudaStream_t stream);

// y = x / n with n = sum |x| (kAbsolute) or sqrt(sum x^2) (kSquares), 0 if n is 0; kMeanVariance: y
// = (x - mean) / (deviation + 1e-9). float32, float16 or bfloat16; y may alias x.
enum class Normalization { kAbsolute, kSquares, kMeanVariance };
cudaError_t normalize(Normalization kind, const GeneralReduceParams& e, const void* x, void* y,
                      cudaStream_t stream);

// dx = dy times the product of all other elements; dy has the shape `kept`.
cudaError_t product_gradient(const GeneralReduceParams& e, const void* dy, const void* x, void* dx,
                             cudaStream_t stream);

// CumSum and CumProd along one axis: float32, float16 and bfloat16 in float32; int32 and int64
// wrap.
//
// x and y are [outer, n, inner]; y may alias x. exclusive: an element is not part of its own sum;
// reverse: from the end. A thread scans a line in order, which suits masks and positions, not long
// lines.
struct ScanParams {
  DType dtype = DType::kFloat32;
  int64_t outer = 1, n = 0, inner = 1;
  bool exclusive = false, reverse = false;
  bool product = false;
};
bool has_running_sum(DType dtype);
cudaError_t running_sum(const ScanParams& e, const void* x, void* y, cudaStream_t stream);
// The gradient of a running product, float32 with sums in double: kernels/ops/reduce/cumulative.cpp
// has the formula. `dtype` and `product` are not read. A thread walks its line twice.
cudaError_t running_product_grad(const ScanParams& e, const float* dy, const float* x, float* dx,
                                 cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
