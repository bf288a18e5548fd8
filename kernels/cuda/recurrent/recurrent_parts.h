// What the kernels of RNN, GRU and LSTM and of their gradients share: operands in float32, whatever they are stored in, and the
// numbers of one direction.
//
// Ownership: values; addresses are the launch's. Threads: one a stream. Errors: what launches say.
#pragma once

#include <array>

#include "kernels/cuda/device/context.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/matmul/product.h"
#include "kernels/cuda/recurrent/recurrent.h"
#include "kernels/ops/recurrent/recurrent_kernel.h"

namespace ofsdp::kernels::cuda {

ops::RecurrentShape recurrent_shape(ops::RecurrentKind kind, const Problem& p);
RecurrentExtent recurrent_extent(const ops::RecurrentShape& s, int64_t direction);

// Operands of float32 as they are, of 16 bits beside them in the workspace.
class FloatOperands {
 public:
  FloatOperands(const Problem& p, Places& places);

  struct Addresses {
    std::array<float*, 16> in{}, out{};  // null: absent, or not a float
  };
  // Inputs read; outputs where they are to be written.
  cudaError_t read(const Launch& l, Addresses& made, cudaStream_t stream) const;
  cudaError_t write(const Launch& l, cudaStream_t stream) const;

 private:
  struct Operand {
    bool present = false, copied = false;
    DType dtype = DType::kFloat32;
    int64_t numel = 0;
    size_t place = 0;
  };
  static Operand operand(const TensorDesc& desc, Places& places);
  std::vector<Operand> inputs_, outputs_;
};

// Rows of [batch, H] of one direction to and from an operand of states [D, B, H] or [B, D, H]; null: zeros.
cudaError_t copy_states(const RecurrentExtent& e, const float* from, float* rows,
                        cudaStream_t stream);
cudaError_t put_states(const RecurrentExtent& e, const float* rows, float* to, cudaStream_t stream);

// A product of float32 matrices, made while planning; `made` stays true while all were.
class FloatProduct {
 public:
  void make(DeviceState& device, int64_t rows, int64_t inner, int64_t columns, bool transpose_a,
            bool transpose_b, bool bias, float beta, bool& made);
  size_t workspace_bytes() const { return product_ == nullptr ? 0 : product_->workspace_bytes(); }
  cudaError_t run(cudaStream_t stream, const float* a, const float* b, const float* bias, float* d,
                  void* workspace) const {
    return product_->run(stream, a, b, bias, d, workspace);
  }

 private:
  std::unique_ptr<MatrixProduct> product_;
};

Acceptance accepts_recurrent(const Problem& p);

// An operator whose kernel is a K of device, shape and problem, if `made()` says that it is.
template <typename K>
CudaImplementation recurrent_products(const char* op, ops::RecurrentKind kind) {
  return {op, "products", accepts_recurrent,
          [kind](DeviceState& device, const Problem& p) -> std::unique_ptr<CudaKernel> {
            auto made = std::make_unique<K>(device, recurrent_shape(kind, p), p);
            return made->made() ? std::move(made) : nullptr;
          }};
}

}  // namespace ofsdp::kernels::cuda
