// MatrixProduct: D = alpha op(A) op(B) + beta C in row-major convention by cuBLASLt, batched over
// leading axes with a stride each; settled while planning: the heuristic's first algorithm or, with
// OFSDP_CUDA_TIMED=1, the fastest of its first eight; kept by shape, type and epilogue.
//
// cuBLASLt is column-major: a row-major matrix is its transpose there, so B goes first and A second.
// The bias of an epilogue runs along columns of D, of which each row here is one.
//
// Ownership: descriptors are the product's, the workspace the arena's. Threads: one a device.
// Errors: null from make where cuBLASLt is absent or has no algorithm.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/cuda/library/handles.h"

namespace ofsdp::cuda {

struct ProductShape {
  DType dtype = DType::kFloat32;
  int64_t rows = 0, columns = 0, inner = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t batch = 1;
  int64_t stride_a = 0, stride_b = 0, stride_d = 0;  // elements from one matrix to the next
  float alpha = 1, beta = 0;                         // beta: D is read as well
  bool bias = false;                                 // of `columns` elements, added to each row
  auto operator<=>(const ProductShape&) const = default;
};

class MatrixProduct {
 public:
  virtual ~MatrixProduct() = default;
  virtual size_t workspace_bytes() const = 0;
  virtual cudaError_t run(cudaStream_t stream, const void* a, const void* b, const void* bias,
                          void* d, void* workspace) = 0;
};

std::unique_ptr<MatrixProduct> make_product(ofsdp_device& device, const ProductShape& shape);

}  // namespace ofsdp::cuda
