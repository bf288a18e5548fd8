#include "kernels/cuda/matmul/product.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kAuxMultiple = 8;  // of the leading dimension, elements

}  // namespace

bool product_has_epilogue(const ProductShape& s) {
  const bool activated = s.activation != Activation::kNone, summed = s.bias_grad != BiasGrad::kNone;
  if (!activated && !summed && !s.aux) return true;
  if (s.batch != 1 || s.beta != 0 || (summed && s.bias) || (s.aux && s.ld_d != 0)) return false;
  if (s.bias_grad == BiasGrad::kOfA || s.bias_grad == BiasGrad::kOfB) return !activated && !s.aux;
  const bool narrow = s.dtype == DType::kFloat16 || s.dtype == DType::kBFloat16;
  if (!narrow || s.columns % kAuxMultiple != 0) return false;
  if (s.activation == Activation::kGelu) return !summed;
  return s.activation == Activation::kGeluGrad && s.aux && !s.bias;
}

}  // namespace ofsdp::kernels::cuda
