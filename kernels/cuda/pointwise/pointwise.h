// Pointwise operators with broadcasting: y = f(a) or f(a, b), in the order and with the formulas of
// the operators of the same name (kernels/ops); gradients are those of ofsdp.NAMEGrad and take dy
// and x (or y: Relu, Sigmoid, Tanh).
//
// For float32, float64 (as written), float16 and bfloat16 (in float32); Add to Min, Neg, Abs, Sign,
// Mod, Clip, the comparisons, Bitwise* and BitShift also of int32 and int64; Equal, And, Or, Xor
// and Not of bool. Comparisons give bool. y is dense and may be a or b where shapes agree. Memory:
// each operand once; a broadcast one comes from the cache.
#pragma once

#include <string_view>

#include "kernels/cuda/pointwise/walk.h"

namespace ofsdp::kernels::cuda {

enum class Pointwise : uint8_t {
#define OPERATION(name, operands) k##name,
#include "kernels/cuda/pointwise/operations.inc"
  kUnknown
};

// "Gelu", "GeluTanh" (approximate = tanh), "GeluGrad", without the domain.
Pointwise pointwise_of(std::string_view name);
int pointwise_arity(Pointwise op);
bool gives_bool(Pointwise op);
bool has_kernel(Pointwise op, DType dtype);  // of the operands

// Attributes: alpha (Elu, Celu, LeakyRelu, ThresholdedRelu, Swish), alpha and gamma (Selu), alpha
// and beta (HardSigmoid), lambd and bias (Shrink), fmod (Mod: a = 1), detect_positive and
// detect_negative (IsInf), the factor of Scale, which is no operator, direction (BitShift: a = 1 is
// left), and bounds (Clip; -infinity and infinity where absent).
struct PointwiseNumbers {
  double a = 0, b = 0;
};

struct PointwiseCall {
  Pointwise op = Pointwise::kUnknown;
  DType dtype = DType::kFloat32;  // of the operands
  PointwiseNumbers numbers = {};
  Walk walk = {};  // operands a and (arity 2) b; y is dense over it
  const void *a = nullptr, *b = nullptr;
  void* y = nullptr;
  Fault fault = {};  // of a whole number that is divided by 0
};
cudaError_t pointwise(const PointwiseCall& c, cudaStream_t stream);
// One dense operand, or two of the same shape.
cudaError_t pointwise(Pointwise op, DType dtype, const void* a, const void* b, void* y,
                      int64_t numel, PointwiseNumbers numbers, cudaStream_t stream);

// y = condition ? a : b; walk: operands condition, a, b. Elements of `size` 1, 2, 4 or 8 bytes.
cudaError_t where(const Walk& walk, size_t size, const bool* condition, const void* a,
                  const void* b, void* y, cudaStream_t stream);

// Cast between any two types, as the operator: floats become integers cut towards 0 and clamped,
// NaN becomes 0.
cudaError_t cast(DType from, const void* x, DType to, void* y, int64_t numel, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
