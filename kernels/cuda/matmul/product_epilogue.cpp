#include <cstdlib>
#include <string>

#include "kernels/cuda/matmul/product.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kAuxMultiple = 8;  // elements; the pitch of aux must be a multiple

// Parts that we fuse into a product. Not bgrad: for BERT-base and GPT-2 124M on an H200, cuBLASLt
// 13.1 takes twice as long for it as our own pass over the gradient (0.18 ms instead of 0.09 at
// 65536 x 2304).
constexpr const char* kJoined = "bias,gelu,add";

// OFSDP_EPILOGUES lists the parts to fuse (bias, gelu, bgrad, add; comma-separated), to compare
// them with separate passes.
bool is_listed(const char* part) {
  static const char* const given = std::getenv("OFSDP_EPILOGUES");
  static const std::string listed = "," + std::string(given != nullptr ? given : kJoined) + ",";
  return listed.find("," + std::string(part) + ",") != std::string::npos;
}

// Logits with an odd width may get a pitched gradient, which our pass does not accept.
bool is_of_odd_rows(const ProductShape& s) {
  const int64_t summed = s.bias_grad == BiasGrad::kOfA ? s.rows : s.columns;
  return summed % kAuxMultiple != 0 && std::getenv("OFSDP_EPILOGUES") == nullptr;
}

}  // namespace

bool epilogue_is_wanted(const ProductShape& s) {
  return (!s.bias || is_listed("bias")) &&
         (s.activation == Activation::kNone || is_listed("gelu")) &&
         (s.bias_grad == BiasGrad::kNone || is_listed("bgrad") || is_of_odd_rows(s)) &&
         (s.beta == 0 || is_listed("add"));
}

bool product_has_epilogue(const ProductShape& s) {
  const bool activated = s.activation != Activation::kNone, summed = s.bias_grad != BiasGrad::kNone;
  if (!activated && !summed && !s.aux) return true;
  if (s.batch != 1 || s.beta != 0 || (summed && s.bias) || (s.aux && s.ld_d != 0)) return false;
  if (s.bias_grad == BiasGrad::kOfA || s.bias_grad == BiasGrad::kOfB) return !activated && !s.aux;
  if (!is_16_bit_float(s.dtype) || s.columns % kAuxMultiple != 0) return false;
  if (s.activation == Activation::kGelu) return !summed;
  return s.activation == Activation::kGeluGrad && s.aux && !s.bias;
}

}  // namespace ofsdp::kernels::cuda
