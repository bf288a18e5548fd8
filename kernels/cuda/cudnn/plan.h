// A cuDNN call prepared while planning: graph, engine and workspace size. The engine is the first
// in heuristic order that can be built.
//
// cudnn-frontend, NVIDIA's header-only C++ over the graph API, builds the graphs; only
// frontend_graphs.cpp includes it. Nondeterministic engines are allowed only if bits may vary, TF32
// only if `tf32`, and Winograd or FFT never for float32, since they round differently from a sum of
// products. Operands must be 16-byte aligned.
//
// [Note: a device that is only described] Since cuDNN 9.8 plans can be built from device
// properties, without a GPU. Tests plan this way; such plans never run.
//
// The makers return null if cuDNN is absent or has no engine; then another implementation takes
// over.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/ops/attention/device_attention.h"

namespace ofsdp::kernels::cuda {

struct CudnnTarget {
  void* handle = nullptr;  // cudnnHandle_t; null: plan for `properties`
  std::string properties;  // device properties as cuDNN's JSON
  int capability = 0;      // 90 for sm_90
  bool tf32 = false;       // float32 may use tensor cores
  bool may_vary = false;   // sums may run in any order
  // Limit in bytes; engines that need more are skipped. The deterministic attention gradient needs
  // workspace quadratic in the sequence length.
  int64_t max_workspace = int64_t{1} << 30;
};

// Describes the current device, which must be `device`, with its TF32 and may_vary settings.
// `handle` is null if cuDNN is absent; else `device` owns it and must outlive the plans.
CudnnTarget cudnn_target(DeviceState& device);

class CudnnPlan {
 public:
  virtual ~CudnnPlan() = default;
  virtual size_t workspace_bytes() const = 0;
  // REQUIRES: operands in the order given at the maker.
  virtual cudaError_t run(cudaStream_t stream, std::span<void*> operands, void* workspace) = 0;
};

// An attention as cuDNN computes it, with the window, causality and softcap of `e`. Query i stands
// at key i if e.offset is 0 and not `to_last_key`. Else the last query stands at the last key: of
// the sample's length if there are lengths, or of all keys. Rows without visible keys, and dk and
// dv of keys after a sample's length, are undefined. REQUIRES: e.offset is 0 or keys - queries.
struct CudnnAttention {
  AttentionParams e;
  ops::MaskUse mask = ops::MaskUse::kNone;
  bool to_last_key = false;
  MaskBias bias = {};  // if mask is kBias
};

// Operands: q, k, v, y, statistics if requested (log-sum-exp per row, float32 [batch, heads,
// queries]), then of the mask: lengths of queries and of keys, int32 [batch] each, or the bias.
std::unique_ptr<CudnnPlan> plan_attention(const CudnnTarget& target, const CudnnAttention& a,
                                          bool statistics);

// Operands: q, k, v, y, dy, statistics, then of the mask as above, dq, dk, dv. y may have other
// strides than dy.
std::unique_ptr<CudnnPlan> plan_attention_grad(const CudnnTarget& target, const CudnnAttention& a,
                                               const HeadStrides& y_strides);

struct ConvolutionParams {
  DType dtype = DType::kFloat32;
  // [images, channels, positions...], [outputs, channels per group, taps...]
  std::vector<int64_t> x, w, y;
  std::vector<int64_t> strides, dilations, pads_begin, pads_end;
  bool channels_last = false;  // x and y; weights never are
};

// Operands: x, w, y and, if `bias`, bias [outputs].
std::unique_ptr<CudnnPlan> plan_convolution(const CudnnTarget& target, const ConvolutionParams& e,
                                            bool bias);
// Operands: dy, w, dx.
std::unique_ptr<CudnnPlan> plan_convolution_grad_input(const CudnnTarget& target,
                                                       const ConvolutionParams& e);
// Operands: dy, x, dw.
std::unique_ptr<CudnnPlan> plan_convolution_grad_weights(const CudnnTarget& target,
                                                         const ConvolutionParams& e);

}  // namespace ofsdp::kernels::cuda
