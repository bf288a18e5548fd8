// Pointwise operators with broadcasting: y = f(a) or f(a, b), with the operand order and formulas
// of the operators in kernels/ops. Gradients (ofsdp.NAMEGrad) take dy and x, or dy and y for Relu,
// Sigmoid and Tanh.
//
//   float32, float64          all but Bitwise* and BitShift, computed as stored
//   float16, bfloat16         the same, computed in float32
//   int32, int64              Add, Sub, Mul, Div, Mod, Max, Min, Identity, Neg, Abs, Sign, Relu,
//                             Clip, Bitwise*, BitShift, and predicates but IsInf
//   bool                      Equal, And, Or, Xor, Not
//
// Predicates return bool. y is dense and may alias an operand of the same shape. Each operand is
// read once; broadcast ones come from the cache.
#pragma once

#include <string_view>

#include "kernels/cuda/pointwise/strided_index.h"
#include "kernels/ops/pointwise/fake_quantize.h"

namespace ofsdp::kernels::cuda {

enum class Pointwise : uint8_t {
#define OPERATION(name, operands) k##name,
#include "kernels/cuda/pointwise/operations.inc"
  kUnknown
};

// name: without domain, such as "Gelu", "GeluTanh" (approximate = tanh), "GeluGrad".
Pointwise pointwise_of(std::string_view name);
int pointwise_arity(Pointwise op);
bool returns_bool(Pointwise op);
bool has_kernel(Pointwise op, DType dtype);  // operand dtype

// The operator's attributes, a and b: alpha (Elu, Celu, LeakyRelu, ThresholdedRelu, Swish); alpha,
// gamma (Selu); alpha, beta (HardSigmoid); lambd, bias (Shrink); fmod (Mod); detect_positive,
// detect_negative (IsInf); direction (BitShift, 1: left); bounds (Clip, infinite if absent); the
// factor of Scale, which is not an ONNX operator.
struct PointwiseNumbers {
  double a = 0, b = 0;
};

struct PointwiseCall {
  Pointwise op = Pointwise::kUnknown;
  DType dtype = DType::kFloat32;  // operand dtype
  PointwiseNumbers numbers = {};
  StridedIndex walk = {};  // operands a and b; y is dense
  const void *a = nullptr, *b = nullptr;
  void* y = nullptr;
  Fault fault = {};  // for an integer division by 0
};
cudaError_t pointwise(const PointwiseCall& c, cudaStream_t stream);
// One dense operand, or two of the same shape.
cudaError_t pointwise(Pointwise op, DType dtype, const void* a, const void* b, void* y,
                      int64_t numel, PointwiseNumbers numbers, cudaStream_t stream);

// y = condition ? a : b. `size` is 1, 2, 4 or 8 bytes per element; walk: operands condition, a, b.
cudaError_t where(const StridedIndex& walk, size_t size, const bool* condition, const void* a,
                  const void* b, void* y, cudaStream_t stream);

// Casts between any two dtypes. Floats become integers by truncation and saturation; NaN becomes 0.
cudaError_t cast(DType from, const void* x, DType to, void* y, int64_t numel, cudaStream_t stream);

// --- ofsdp.FakeQuantize and its gradients (kernels/ops/pointwise/quantize.cpp), in float32.
//
// All operands are `dtype`: float32, float16 or bfloat16. x, dy, y and dx have map.elements()
// elements, dense; scale, zero (nullptr: zeros) and ds have map.scales(). y may alias x, dx may
// alias dy. Sums are double, in a fixed order. Each operand is read once. If scales run along the
// last axis, their gradient reads columns of x and dy, which is slow.

struct FakeQuantizeParams {
  DType dtype = DType::kFloat32;
  ScaleMap map;
  IntegerRange range = {};
  double step = 1;  // scales the scale gradient
};
struct FakeQuantizeOperands {
  const void *dy, *x, *scale, *zero;  // dy: for the gradients
};

cudaError_t fake_quantize(const FakeQuantizeParams& e, const FakeQuantizeOperands& o, void* y,
                          cudaStream_t stream);
cudaError_t fake_quantize_grad(const FakeQuantizeParams& e, const FakeQuantizeOperands& o, void* dx,
                               cudaStream_t stream);
size_t fake_quantize_scale_grad_scratch(const FakeQuantizeParams& e);  // bytes
cudaError_t fake_quantize_scale_grad(const FakeQuantizeParams& e, const FakeQuantizeOperands& o,
                                     void* ds, void* scratch, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
