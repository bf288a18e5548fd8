// Kernels for float32 alone that take 16-bit floats too: they work on float32 copies in the
// workspace, and the results are rounded once.
//
//   list.push_back(in_float32({"Det", "own", accepts, create}));
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pointwise/pointwise.h"

namespace ofsdp::kernels::cuda {

inline bool is_narrow(const TensorDesc& desc) {
  return desc.present() && is_16_bit_float(desc.dtype);
}

inline Problem widened(Problem p) {
  for (auto* descs : {&p.inputs, &p.outputs}) {
    for (TensorDesc& desc : *descs) {
      if (is_narrow(desc)) desc.dtype = DType::kFloat32;
    }
  }
  return p;
}

// A float32 kernel between conversions of the 16-bit operands.
class InFloat32 final : public CudaKernel {
 public:
  InFloat32(const Problem& p, std::unique_ptr<CudaKernel> kernel) : kernel_(std::move(kernel)) {
    places_.take(kernel_->workspace_bytes());
    inputs_ = copies(p.inputs);
    outputs_ = copies(p.outputs);
    in_.resize(p.inputs.size());
    out_.resize(p.outputs.size());
  }
  size_t workspace_bytes() const override { return places_.bytes(); }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    std::ranges::copy(l.inputs, in_.begin());
    std::ranges::copy(l.outputs, out_.begin());
    for (const Copy& c : inputs_) {
      in_[c.operand] = at(l.workspace, c.offset);
      OFSDP_CUDA_TRY(
          cast(c.dtype, l.inputs[c.operand], DType::kFloat32, in_[c.operand], c.numel, stream));
    }
    for (const Copy& c : outputs_) out_[c.operand] = at(l.workspace, c.offset);
    Launch wide = l;
    wide.inputs = in_;
    wide.outputs = out_;
    OFSDP_CUDA_TRY(kernel_->run(stream, wide));
    for (const Copy& c : outputs_) {
      OFSDP_CUDA_TRY(
          cast(DType::kFloat32, out_[c.operand], c.dtype, l.outputs[c.operand], c.numel, stream));
    }
    return cudaSuccess;
  }

 private:
  struct Copy {
    size_t operand, offset;
    DType dtype;
    int64_t numel;
  };
  std::vector<Copy> copies(const std::vector<TensorDesc>& descs) {
    std::vector<Copy> made;
    for (size_t i = 0; i < descs.size(); ++i) {
      if (!is_narrow(descs[i])) continue;
      const int64_t numel = descs[i].numel();
      made.push_back({i, places_.take(numel, sizeof(float)), descs[i].dtype, numel});
    }
    return made;
  }

  std::unique_ptr<CudaKernel> kernel_;
  Places places_;
  std::vector<Copy> inputs_, outputs_;
  std::vector<void*> in_, out_;
};

// Operands in float32 are not copied.
inline CudaImplementation in_float32(CudaImplementation own) {
  const auto accepts = own.accepts;
  const auto create = own.create;
  own.accepts = [accepts](const Problem& p) { return accepts(widened(p)); };
  own.create = [create](DeviceState& device, const Problem& p) -> std::unique_ptr<CudaKernel> {
    auto kernel = create(device, widened(p));
    const bool narrow =
        std::ranges::any_of(p.inputs, is_narrow) || std::ranges::any_of(p.outputs, is_narrow);
    if (kernel == nullptr || !narrow) return kernel;
    return std::make_unique<InFloat32>(p, std::move(kernel));
  };
  return own;
}

}  // namespace ofsdp::kernels::cuda
