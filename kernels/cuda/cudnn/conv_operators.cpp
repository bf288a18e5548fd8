// Conv and the gradients by cuDNN. Activations may be plain or channels last, weights stay as in
// the file. relu is a separate pass, since cuDNN's turns NaN into 0.
#include <algorithm>
#include <array>

#include "kernels/cuda/conv/conv_parts.h"
#include "kernels/cuda/cudnn/plan.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/cuda/reduce/reduce.h"

namespace ofsdp::kernels::cuda {
namespace {

Acceptance accepts(const Problem& p) {
  return accept(accepts_conv(p), {same_layout(p.in(0).layout == p.out(0).layout &&
                                              p.in(1).layout == Layout::kPlain)});
}

Acceptance accepts_grad_input(const Problem& p) {
  return accept(accepts_conv_grad(p), {same_layout(p.in(0).layout == p.out(0).layout &&
                                                   p.in(1).layout == Layout::kPlain)});
}

Acceptance accepts_grad_weights(const Problem& p) {
  if (!p.has_out(0)) return Acceptance::refuse("the gradient of the weights is not wanted");
  return accept(accepts_conv_grad(p), {same_layout(p.in(0).layout == p.in(1).layout &&
                                                   p.out(0).layout == Layout::kPlain)});
}

// Drops leading axes that the problem does not have. cuDNN needs at least two.
std::vector<int64_t> spatial(const int64_t (&of_three)[3], size_t axes) {
  return {of_three + 3 - axes, of_three + 3};
}

std::vector<int64_t> shape_of(int64_t first, int64_t second, std::vector<int64_t> rest) {
  rest.insert(rest.begin(), {first, second});
  return rest;
}

ConvolutionParams extent_of(const Problem& p, const Shape& x, const Shape& w, Layout layout) {
  const ConvParams e = conv_params(p, x, w);
  const WindowParams& window = e.window;
  const auto axes = static_cast<size_t>(std::max(2, x.rank() - 2));
  ConvolutionParams c;
  c.dtype = window.dtype;
  c.x = shape_of(x[0], x[1], spatial(window.in, axes));
  c.w = shape_of(w[0], w[1], spatial(window.kernel, axes));
  c.y = shape_of(x[0], w[0], spatial(window.out, axes));
  c.strides = spatial(window.strides, axes);
  c.dilations = spatial(window.dilations, axes);
  c.pads_begin = spatial(window.pads_begin, axes);
  c.pads_end = spatial(window.pads_end, axes);
  c.channels_last = layout == Layout::kChannelsLast;
  return c;
}

std::unique_ptr<CudaKernel> create(DeviceState& device, const Problem& p) {
  const bool bias = p.has_in(2);
  const ConvolutionParams e = extent_of(p, p.in(0).shape, p.in(1).shape, p.in(0).layout);
  std::shared_ptr<CudnnPlan> plan = plan_convolution(cudnn_target(device), e, bias);
  if (plan == nullptr) return nullptr;
  const bool relu = has_relu(p);
  const int64_t numel = p.out(0).numel();
  return make_cuda_kernel(
      [=](cudaStream_t stream, const Launch& l) {
        std::array<void*, 4> operands{l.in(0), l.in(1), l.out(0), bias ? l.in(2) : nullptr};
        const std::span<void*> used(operands.data(), bias ? 4 : 3);
        OFSDP_CUDA_TRY(plan->run(stream, used, l.workspace));
        if (!relu) return cudaSuccess;
        return pointwise(Pointwise::kRelu, e.dtype, l.out(0), nullptr, l.out(0), numel, {}, stream);
      },
      plan->workspace_bytes());
}

// (dy, w) -> dx
std::unique_ptr<CudaKernel> create_grad_input(DeviceState& device, const Problem& p) {
  const ConvolutionParams e = extent_of(p, conv_x_shape(p), conv_w_shape(p), p.in(0).layout);
  std::shared_ptr<CudnnPlan> plan = plan_convolution_grad_input(cudnn_target(device), e);
  if (plan == nullptr) return nullptr;
  return make_cuda_kernel(
      [=](cudaStream_t stream, const Launch& l) {
        std::array<void*, 3> operands{l.in(0), l.in(1), l.out(0)};
        return plan->run(stream, operands, l.workspace);
      },
      plan->workspace_bytes());
}

// Plans db = sum of dy over images and positions.
std::vector<ReducePass> bias_sums(const ConvolutionParams& e) {
  int64_t positions = 1;
  for (size_t i = 2; i < e.y.size(); ++i) positions *= e.y[i];
  if (e.channels_last) return plan_reduce({e.y[0] * positions, e.y[1]}, {true, false});
  return plan_reduce({e.y[0], e.y[1], positions}, {true, false, true});
}

// (x, dy) -> dw, db
std::unique_ptr<CudaKernel> create_grad_weights(DeviceState& device, const Problem& p) {
  const ConvolutionParams e = extent_of(p, conv_x_shape(p), conv_w_shape(p), p.in(0).layout);
  std::shared_ptr<CudnnPlan> plan = plan_convolution_grad_weights(cudnn_target(device), e);
  if (plan == nullptr) return nullptr;
  const bool bias = p.has_out(1);
  const std::vector<ReducePass> sums = bias_sums(e);
  // cuDNN and the reduction share the workspace, one after the other.
  const size_t bytes = std::max(plan->workspace_bytes(), bias ? reduce_scratch(sums) : 0);
  return make_cuda_kernel(
      [=](cudaStream_t stream, const Launch& l) {
        std::array<void*, 3> operands{l.in(1), l.in(0), l.out(0)};
        OFSDP_CUDA_TRY(plan->run(stream, operands, l.workspace));
        if (!bias) return cudaSuccess;
        ReduceCall call;
        call.dtype = call.out_dtype = e.dtype;
        call.x = l.in(1);
        call.y = l.out(1);
        call.scratch = l.workspace;
        return reduce(sums, call, stream);
      },
      bytes);
}

}  // namespace

void add_cudnn_convolutions(CudaImplementations& list) {
  list.insert(list.end(),
              {{"Conv", "cudnn", accepts, create},
               {"ofsdp.ConvGradInput", "cudnn", accepts_grad_input, create_grad_input},
               {"ofsdp.ConvGradWeights", "cudnn", accepts_grad_weights, create_grad_weights}});
}

}  // namespace ofsdp::kernels::cuda
