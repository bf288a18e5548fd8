// Folds over any axes that are no plain reductions of floats (reduce.h): reductions of float64,
// int32 and int64, the logarithm of a sum of exponentials, normalization by a norm or by mean and
// variance, the gradient of a product.
//
// An element of the result belongs to a warp, or to a block where many elements are folded; sums
// are in double (whole numbers wrap), in one order. Memory: x once; normalization x two or three
// times and y once, of which all but one from the cache where the folded part is small.
// Neighbouring results lie apart in x where the last axis is not folded: slow there.
#pragma once

#include "kernels/cuda/device/types.h"
#include "kernels/cuda/pointwise/walk.h"

namespace ofsdp::kernels::cuda {

struct FoldExtent {
  DType dtype = DType::kFloat32;
  Walk kept, reduced;  // of x
};
// A rank of -1: too many axes.
FoldExtent fold_extent(DType dtype, const std::vector<int64_t>& shape,
                       const std::vector<bool>& reduced);

enum class FoldKind {
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
// float64 all, int32 and int64 what stays whole, float32, float16 and bfloat16 kNorm and the
// logarithms.
bool has_fold(FoldKind kind, DType dtype);
cudaError_t fold(FoldKind kind, const FoldExtent& e, const void* x, void* y, cudaStream_t stream);

// y = x / n, 0 where n is 0, n the sum of |x| or the root of that of squares; or (x - mean) /
// (deviation + 1e-9). Of float32, float16, bfloat16; y may be x.
enum class Normalization { kAbsolute, kSquares, kMeanVariance };
cudaError_t normalize(Normalization kind, const FoldExtent& e, const void* x, void* y,
                      cudaStream_t stream);

// dx = dy times the product of all other elements; dy [kept].
cudaError_t product_gradient(const FoldExtent& e, const void* dy, const void* x, void* dx,
                             cudaStream_t stream);

// Running sums (CumSum) or products (CumProd) along an axis, of float32, float16, bfloat16 (in
// float32), int32 and int64 (which wrap).
//
// x, y: [outer, n, inner]; exclusive: an element is not in its own sum; reverse: from the end. A
// thread a line, so that the order of additions is plain: for masks and positions, not for long
// lines. y may be x. Memory: x and y once.
struct ScanExtent {
  DType dtype = DType::kFloat32;
  int64_t outer = 1, n = 0, inner = 1;
  bool exclusive = false, reverse = false;
  bool product = false;
};
bool has_running_sum(DType dtype);
cudaError_t running_sum(const ScanExtent& e, const void* x, void* y, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
