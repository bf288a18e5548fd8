// MatrixProduct: D = epilogue(alpha op(A) op(B) + beta C + bias), row-major, by cuBLASLt. Matrices
// are float32, float16 or bfloat16, batched with a stride per operand; sums are float32.
//
// make_product decides while planning whether to pad (product.cpp, [Note: odd extents]) and which
// of the heuristic's first eight algorithms to run (lt_product.h). It caches the algorithm by
// device, shape, dtype and epilogue.
//
// cuBLASLt is column-major and sees a row-major matrix as its transpose, so we pass B first and A
// second. The bias runs down the rows of cuBLASLt's D, the columns of ours.
//
// [Note: which epilogues] BIAS and beta = 1 give the bits of a separate pass, rounded once. GELU is
// the tanh form with an unspecified tanh, so we use it for 16-bit results only. We never ask for
// RELU, which turns NaN into 0 and would hide a run that has diverged, nor for DRELU, which needs
// RELU's bit mask. BGRADA, BGRADB and DGELU_BGRAD sum a bias gradient in an order that the
// algorithm fixes, so runs repeat bit for bit.
//
// A product owns its descriptors; the caller owns the workspace. One thread per device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// The function between z = alpha op(A) op(B) + beta C + bias and D.
enum class Activation : uint8_t {
  kNone,
  kGelu,      // D = gelu(z); stores z in aux if `aux` is set
  kGeluGrad,  // D = z gelu'(aux)
};

// The bias gradient to return besides D: row sums of op(A), or column sums of op(B) or D.
enum class BiasGrad : uint8_t { kNone, kOfA, kOfB, kOfD };

// Bytes: tensors are aligned to 32, and so are parameters in a unit, which begin at multiples of 16
// elements of at least 2 bytes. For a part of a tensor, use the element size.
inline constexpr uint32_t kProductAlignment = 32;

struct ProductShape {
  DType dtype = DType::kFloat32;
  int64_t rows = 0, columns = 0, inner = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t ld_a = 0, ld_b = 0, ld_d = 0;  // pitch; 0: dense
  int64_t batch = 1;
  int64_t stride_a = 0, stride_b = 0, stride_d = 0;  // elements between matrices
  float alpha = 1, beta = 0;                         // C is read if beta != 0
  bool bias = false;                                 // [columns], added to each row
  Activation activation = Activation::kNone;  // batch must be 1 if set, also for aux and bias_grad
  bool aux = false;                           // [rows, columns], dense
  BiasGrad bias_grad = BiasGrad::kNone;       // excludes bias
  uint32_t alignment = kProductAlignment;     // bytes, of every matrix; a bias needs 16
  bool wide = false;  // C and D are float32, whatever `dtype` is; without bias and activation
  bool tf32 = false;  // round float32 operands to TF32; make_product sets it
  auto operator<=>(const ProductShape&) const = default;

  // Pitches of the stored matrices.
  int64_t row_a() const { return ld_a != 0 ? ld_a : transpose_a ? rows : inner; }
  int64_t row_b() const { return ld_b != 0 ? ld_b : transpose_b ? inner : columns; }
  int64_t row_d() const { return ld_d != 0 ? ld_d : columns; }
  DType result() const { return wide ? DType::kFloat32 : dtype; }
};

struct ProductOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;  // shape and pitch of D; null: D itself
  const void* bias = nullptr;
  void* aux = nullptr;
  void* d = nullptr;
  void* bias_grad = nullptr;
  void* workspace = nullptr;
};

class MatrixProduct {
 public:
  virtual ~MatrixProduct() = default;
  virtual size_t workspace_bytes() const = 0;
  virtual cudaError_t run(cudaStream_t stream, const ProductOperands& operands) = 0;
  cudaError_t run(cudaStream_t stream, const void* a, const void* b, const void* bias, void* d,
                  void* workspace) {
    return run(stream, {.a = a, .b = b, .bias = bias, .d = d, .workspace = workspace});
  }
};

// Returns whether cuBLASLt may have the epilogue, by dtype, pitch and the parts combined.
bool product_has_epilogue(const ProductShape& shape);
// Returns whether OFSDP_EPILOGUES (for benchmarks) lets us fuse these parts into the product.
bool epilogue_is_wanted(const ProductShape& shape);

// Products with fewer multiplications are not padded.
inline constexpr int64_t kMinPadded = int64_t{1} << 30;

// Returns nullptr if cuBLASLt is absent or has no algorithm.
std::unique_ptr<MatrixProduct> make_product(DeviceState& device, ProductShape shape,
                                            int64_t min_padded = kMinPadded);

}  // namespace ofsdp::kernels::cuda
