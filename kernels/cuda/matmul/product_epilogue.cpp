#include <cstdlib>
#include <string>

#include "kernels/cuda/matmul/product.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kAuxMultiple = 8;  // of the leading dimension, elements

// OFSDP_EPILOGUES, to compare joined products with their parts: the parts of products that may be
// joined, of bias, gelu, bgrad and add, with commas between; unset: all.
bool is_listed(const char* part) {
  static const char* const listed = std::getenv("OFSDP_EPILOGUES");
  if (listed == nullptr) return true;
  return ("," + std::string(listed) + ",").find("," + std::string(part) + ",") != std::string::npos;
}

}  // namespace

bool epilogue_is_wanted(const ProductShape& s) {
  return (!s.bias || is_listed("bias")) &&
         (s.activation == Activation::kNone || is_listed("gelu")) &&
         (s.bias_grad == BiasGrad::kNone || is_listed("bgrad")) &&
         (s.beta == 0 || is_listed("add"));
}

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
