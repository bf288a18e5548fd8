// ofsdp.FakeQuantize and its gradients (kernels/ops/pointwise/quantize.cpp), of float32,
// float16 and bfloat16, computed in float32.
//
// x, dy, y, dx: [elements of the map], dense; y may be x, and dx dy. scale, zero (null: zeros), ds:
// [its scales]. All are of dtype. Sums are in double, in one order. Memory: each operand once;
// where scales follow each other along the last axis, their gradient reads x and dy across rows.
#pragma once

#include "kernels/cuda/device/types.h"
#include "kernels/ops/pointwise/fake_quantize.h"

namespace ofsdp::kernels::cuda {

struct FakeQuantizeExtent {
  DType dtype = DType::kFloat32;
  ScaleMap map;
  IntegerRange range = {};
  double step = 1;  // of the gradient of scales
};
struct FakeQuantizeOperands {
  const void *dy, *x, *scale, *zero;  // dy: of the gradients
};

cudaError_t fake_quantize(const FakeQuantizeExtent& e, const FakeQuantizeOperands& o, void* y,
                          cudaStream_t stream);
cudaError_t fake_quantize_grad(const FakeQuantizeExtent& e, const FakeQuantizeOperands& o, void* dx,
                               cudaStream_t stream);
size_t fake_quantize_scale_grad_scratch(const FakeQuantizeExtent& e);  // bytes
cudaError_t fake_quantize_scale_grad(const FakeQuantizeExtent& e, const FakeQuantizeOperands& o,
                                     void* ds, void* scratch, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
