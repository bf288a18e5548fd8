// ConvTranspose: what the gradient of a convolution's input is (conv_operators.cpp), and the bias. Its own gradients are a Conv
// and ofsdp.ConvGradWeights.
#include "kernels/cuda/conv/conv_parts.h"
#include "kernels/cuda/conv/window_extent.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/ops/conv/conv_transpose_shape.h"

namespace ofsdp::kernels::cuda {
namespace {

bool accepts(const Problem& p) {
  return is_float(p.in(0).dtype) && p.all_dtype(p.in(0).dtype) && p.in(0).numel() > 0 &&
         p.in(1).numel() > 0 && p.in(0).shape.rank() <= 5;
}

ConvExtent extent_of(const Problem& p) {
  const Shape& w = p.in(1).shape;
  const ops::ConvShape s = ops::known_transposed(p.attributes, p.in(0).shape, w);
  ConvExtent e;
  e.group = s.group;
  e.outputs = w[0] / s.group;
  e.size = dtype_size(p.in(0).dtype);
  e.window = window_extent(s.window, s.x[0], w[1], p.in(0).dtype, true);
  return e;
}

// y + bias, over [images, channels, positions] as they lie.
PointwiseCall with_bias(const TensorDesc& y) {
  const int64_t positions = y.shape.numel(2, y.shape.rank());
  const bool last = y.layout == Layout::kChannelsLast;
  const std::vector<int64_t> shape = last ? std::vector<int64_t>{y.shape[0] * positions, y.shape[1]}
                                          : std::vector<int64_t>{y.shape[0], y.shape[1], positions};
  const std::vector<int64_t> bias =
      last ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{0, 1, 0};
  PointwiseCall call;
  call.op = Pointwise::kAdd;
  call.dtype = y.dtype;
  call.walk = collapsed(shape, {dense_strides(shape), bias});
  return call;
}

std::unique_ptr<CudaKernel> create(ofsdp_device& device, const Problem& p) {
  auto made = make_conv_grad_input(device, extent_of(p), p.in(0), p.out(0));
  if (made == nullptr || !p.has_in(2)) return made;
  std::shared_ptr<CudaKernel> inner = std::move(made);
  return make_cuda_kernel(
      [inner, add = with_bias(p.out(0))](cudaStream_t stream, const ofsdp_launch& l) {
        OFSDP_CUDA_TRY(inner->run(stream, l));
        PointwiseCall call = add;
        call.a = call.y = l.outputs[0];
        call.b = l.inputs[2];
        return pointwise(call, stream);
      },
      inner->workspace_bytes());
}

}  // namespace

void add_conv_transpose(CudaImplementations& list) {
  list.push_back({"ConvTranspose", "row2im", accepts, create});
}

}  // namespace ofsdp::kernels::cuda
