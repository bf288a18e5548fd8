// Pointwise operators with broadcasting: y = f(a) or f(a, b), in the order and with the formulas of the operators of the
// same name (kernels/ops); gradients are those of ofsdp.NAMEGrad and take dy and x (or y: Relu, Sigmoid, Tanh).
//
// Of float32, float64 (as written), float16 and bfloat16 (in float32); Add to Min, Neg, Abs, Sign, Mod, Clip, the comparisons, Bitwise* and BitShift also
// of int32 and int64; Equal, And, Or, Xor and Not of bool. Comparisons give bool. y is dense and may be a or b where
// shapes agree. Memory: each operand once; a broadcast one comes from the cache.
#pragma once

#include <string_view>

#include "kernels/cuda/pointwise/walk.h"

namespace ofsdp::kernels::cuda {

// X(name of the operator, operands); clang-format knows no stable layout for such a list.
// clang-format off
#define OFSDP_POINTWISE_OPS(X)                                                                   \
  X(Identity, 1) X(Neg, 1) X(Abs, 1) X(Sqrt, 1) X(Exp, 1) X(Log, 1) X(Erf, 1) X(Tanh, 1)         \
  X(Sigmoid, 1) X(Relu, 1) X(Gelu, 1) X(GeluTanh, 1) X(Swish, 1) X(Reciprocal, 1) X(Sin, 1)      \
  X(Cos, 1) X(Tan, 1) X(Asin, 1) X(Acos, 1) X(Atan, 1) X(Sinh, 1) X(Cosh, 1) X(Asinh, 1)         \
  X(Acosh, 1) X(Atanh, 1) X(Floor, 1) X(Ceil, 1) X(Round, 1) X(Sign, 1) X(Softplus, 1)           \
  X(Softsign, 1) X(Elu, 1) X(Celu, 1) X(Selu, 1) X(HardSigmoid, 1) X(HardSwish, 1)               \
  X(LeakyRelu, 1) X(Mish, 1) X(ThresholdedRelu, 1) X(Shrink, 1) X(Clip, 1) X(Not, 1)             \
  X(Scale, 1) X(IsNaN, 1) X(IsInf, 1) X(BitwiseNot, 1) X(BitwiseAnd, 2) X(BitwiseOr, 2) X(BitwiseXor, 2)   \
  X(BitShift, 2) X(Add, 2) X(Sub, 2) X(Mul, 2) X(Div, 2) X(Pow, 2) X(Max, 2) X(Min, 2)              \
  X(PRelu, 2) X(Mod, 2) X(BiasGelu, 2) X(FastGelu, 2) X(Equal, 2) X(Less, 2) X(LessOrEqual, 2)   \
  X(Greater, 2) X(GreaterOrEqual, 2) X(And, 2) X(Or, 2) X(Xor, 2) X(AbsGrad, 2) X(ErfGrad, 2)    \
  X(TanhGrad, 2) X(SigmoidGrad, 2) X(ReluGrad, 2) X(GeluGrad, 2) X(GeluTanhGrad, 2)              \
  X(SwishGrad, 2) X(SoftplusGrad, 2) X(SoftsignGrad, 2) X(EluGrad, 2) X(CeluGrad, 2)             \
  X(SeluGrad, 2) X(HardSigmoidGrad, 2) X(HardSwishGrad, 2) X(LeakyReluGrad, 2) X(MishGrad, 2)    \
  X(ThresholdedReluGrad, 2) X(ShrinkGrad, 2) X(ClipGrad, 2)
// clang-format on

enum class Pointwise : uint8_t {
#define OFSDP_POINTWISE_ENTRY(name, arity) k##name,
  OFSDP_POINTWISE_OPS(OFSDP_POINTWISE_ENTRY)
#undef OFSDP_POINTWISE_ENTRY
      kUnknown
};

// "Gelu", "GeluTanh" (approximate = tanh), "GeluGrad", without the domain.
Pointwise pointwise_of(std::string_view name);
int pointwise_arity(Pointwise op);
bool gives_bool(Pointwise op);
bool has_kernel(Pointwise op, DType dtype);  // of the operands

// Attributes: alpha (Elu, Celu, LeakyRelu, ThresholdedRelu, Swish), alpha and gamma (Selu), alpha and beta (HardSigmoid),
// lambd and bias (Shrink), fmod (Mod: a = 1), detect_positive and detect_negative (IsInf), the factor of Scale, which is no operator, direction (BitShift: a = 1 is left),
// and bounds (Clip; -infinity and infinity where absent).
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

// Cast between any two types, as the operator: floats become integers cut towards 0 and clamped, NaN becomes 0.
cudaError_t cast(DType from, const void* x, DType to, void* y, int64_t numel, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
