// MatrixProduct: D = epilogue(alpha op(A) op(B) + beta C) in row-major convention by cuBLASLt,
// batched over leading axes with a stride each; settled while planning, and kept by shape, type and
// epilogue: which of the heuristic's first eight algorithms (product_choice.h), and whether the
// product is padded (product.cpp, [Note: odd extents]).
//
// cuBLASLt is column-major: a row-major matrix is its transpose there, so B goes first and A
// second. The bias of an epilogue runs along columns of D, of which each row here is one.
//
// [Note: which epilogues] BIAS and beta = 1 give what a pass after the product gives, rounded
// once. GELU is the form with tanh, whose tanh the library does not specify: for 16 bits alone.
// RELU gives 0 for NaN, and a run that has become NaN would go on unnoticed: it is never asked for,
// nor is DRELU, which needs its bit mask. BGRADA, BGRADB and DGELU_BGRAD sum a bias gradient in an
// order of their own, which an algorithm fixes: from run to run the bits are the same.
//
// Ownership: descriptors are the product's, the workspace the arena's. Threads: one a device.
// Errors: null from make where cuBLASLt is absent or has no algorithm.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// Done to the product z = alpha op(A) op(B) + beta C + bias on its way to D.
enum class Activation : uint8_t {
  kNone,
  kGelu,      // D = gelu(z); z itself becomes aux where that is wanted
  kGeluGrad,  // D = z gelu'(aux)
};

// A bias gradient besides D: op(A) summed over its columns, op(B) or D over their rows.
enum class BiasGrad : uint8_t { kNone, kOfA, kOfB, kOfD };

// Bytes: of tensors, and of parameters of a unit, which begin at multiples of 16 elements of at
// least 16 bits. Of parts of them it is that of an element.
inline constexpr uint32_t kProductAlignment = 32;

struct ProductShape {
  DType dtype = DType::kFloat32;
  int64_t rows = 0, columns = 0, inner = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t ld_a = 0, ld_b = 0, ld_d = 0;  // elements from a row as it lies to the next; 0: dense
  int64_t batch = 1;
  int64_t stride_a = 0, stride_b = 0, stride_d = 0;  // elements from one matrix to the next
  float alpha = 1, beta = 0;                         // beta: C is read as well
  bool bias = false;                                 // of `columns` elements, added to each row
  Activation activation = Activation::kNone;         // and what follows: of one matrix
  bool aux = false;                                  // [rows, columns], as D dense
  BiasGrad bias_grad = BiasGrad::kNone;              // not with bias
  uint32_t alignment = kProductAlignment;            // of every matrix; of a bias 16 or more
  bool tf32 = false;  // operands of float32 are rounded to TF32; make_product sets it
  auto operator<=>(const ProductShape&) const = default;

  // Elements from one row to the next, as the matrices lie.
  int64_t row_a() const { return ld_a != 0 ? ld_a : transpose_a ? rows : inner; }
  int64_t row_b() const { return ld_b != 0 ? ld_b : transpose_b ? inner : columns; }
  int64_t row_d() const { return ld_d != 0 ? ld_d : columns; }
};

struct ProductOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;  // as D; null: D itself
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

// Whether there can be one, by the shape alone: leading dimensions, and the parts that go together.
bool product_has_epilogue(const ProductShape& shape);
// Whether OFSDP_EPILOGUES, for comparisons, lets these parts be joined with a product.
bool epilogue_is_wanted(const ProductShape& shape);

// Multiplications from which an odd extent is rounded up (product.cpp).
inline constexpr int64_t kMinPadded = int64_t{1} << 30;

std::unique_ptr<MatrixProduct> make_product(DeviceState& device, ProductShape shape,
                                            int64_t least_padded = kMinPadded);

}  // namespace ofsdp::kernels::cuda
