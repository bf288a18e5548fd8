// CudnnPlan: one call of cuDNN, settled while planning: its graph, the heuristic's first engine
// that can be built, the workspace.
//
// Attention and convolutions are built by cudnn-frontend (NVIDIA's header-only C++ over the C API
// of graphs), which frontend_graphs.cpp alone includes. Engines whose sums have no fixed order are
// taken where bits may vary alone, those that round float32 to TF32 where that is allowed, and
// those of Winograd's and Fourier's kind, whose rounding is not that of a sum of products, never
// for float32. Operands begin at multiples of 16 bytes.
//
// [Note: a device that is only described] Since cuDNN 9.8 a plan can be made for the properties of
// a device, without one. So tests plan for a GPU that is not there; such a plan is never run.
//
// Ownership: descriptors are the plan's, the workspace the arena's. Threads: one a device.
// Errors: null from the makers where cuDNN is absent or has no engine: another implementation has
// it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/attention/attention.h"

namespace ofsdp::kernels::cuda {

struct CudnnTarget {
  void* handle =
      nullptr;  // cudnnHandle_t of a device that is there; null: `properties` describe it
  std::string properties;  // JSON, as cuDNN writes those of a device
  int capability = 0;      // 90 for sm_90
  bool tf32 = false;       // float32 may go through tensor cores
  bool may_vary = false;   // sums may have any order
  // Engines that need more are passed over. Sums of attention's gradient in a fixed order need room
  // that grows with the square of the length.
  int64_t most_workspace = int64_t{1} << 30;
};

// For a device that is there; handle null: cuDNN is absent.
CudnnTarget cudnn_target(DeviceState& device);

class CudnnPlan {
 public:
  virtual ~CudnnPlan() = default;
  virtual size_t workspace_bytes() const = 0;
  // Operands in the order that the maker says.
  virtual cudaError_t run(cudaStream_t stream, std::span<void*> operands, void* workspace) = 0;
};

// q, k, v, y and, with statistics, max + log of the sum of each row, float32 [batch, heads,
// queries]. Without mask, lengths, window or softcap.
std::unique_ptr<CudnnPlan> plan_attention(const CudnnTarget& target, const AttentionExtent& e,
                                          bool statistics);

// q, k, v, y, dy, statistics, dq, dk, dv; y_strides: of y, which may lie otherwise than dy.
std::unique_ptr<CudnnPlan> plan_attention_grad(const CudnnTarget& target, const AttentionExtent& e,
                                               const HeadStrides& y_strides);

struct ConvolutionExtent {
  DType dtype = DType::kFloat32;
  // [images, channels, positions...], [outputs, channels of a group, taps...]
  std::vector<int64_t> x, w, y;
  std::vector<int64_t> strides, dilations, pads_begin, pads_end;
  bool channels_last = false;  // x and y; weights are always as in the file
};

// x, w, y, and with bias: bias, of the outputs
std::unique_ptr<CudnnPlan> plan_convolution(const CudnnTarget& target, const ConvolutionExtent& e,
                                            bool bias);
// dy, w, dx
std::unique_ptr<CudnnPlan> plan_convolution_grad_input(const CudnnTarget& target,
                                                       const ConvolutionExtent& e);
// dy, x, dw
std::unique_ptr<CudnnPlan> plan_convolution_grad_weights(const CudnnTarget& target,
                                                         const ConvolutionExtent& e);

}  // namespace ofsdp::kernels::cuda
