// Max and average pooling with their gradients: kernels/cuda/conv/window.h.
#include "kernels/cuda/conv/window_extent.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/ops/pool/pool_shape.h"

namespace ofsdp::kernels::cuda {
namespace {

bool is_supported(const TensorDesc& x) { return is_float(x.dtype) && x.shape.rank() <= 5; }

bool relu_of(const Attributes& attributes) {
  return attributes.s("ofsdp_activation", "") == "relu";
}

// The extent of a forward from x, or of a gradient from its attribute x_shape.
WindowExtent extent_of(const Problem& p, const Shape& x, const TensorDesc& like) {
  return window_extent(ops::known_pool(p.attributes, x), x[0], x[1], like.dtype,
                       like.layout == Layout::kChannelsLast);
}

// Winners lie as the output; Indices are plain.
bool accepts_max(const Problem& p) {
  const Layout layout = p.in(0).layout;
  const bool known = relu_of(p.attributes) || p.attributes.s("ofsdp_activation", "").empty();
  const bool indices =
      !p.has_out(1) || (layout == Layout::kPlain && p.out(1).layout == Layout::kPlain);
  return is_supported(p.in(0)) && known && p.out(0).layout == layout && indices &&
         (!p.has_out(2) || p.out(2).layout == layout);
}

std::unique_ptr<CudaKernel> create_max(ofsdp_device&, const Problem& p) {
  const WindowExtent w = extent_of(p, p.in(0).shape, p.in(0));
  const bool column_major = p.attributes.i("storage_order", 0) != 0;
  return make_cuda_kernel(
      [=, indices = p.has_out(1), winners = p.has_out(2), relu = relu_of(p.attributes)](
          cudaStream_t stream, const ofsdp_launch& l) {
        return max_pool(w, l.inputs[0], l.outputs[0], winners ? l.outputs[2] : nullptr,
                        indices ? static_cast<int64_t*>(l.outputs[1]) : nullptr, column_major, relu,
                        stream);
      });
}

// One window over the whole plane; output 1 is our own, the winners. The bytes of both are the same in
// both layouts.
bool accepts_global(const Problem& p) { return is_supported(p.in(0)); }

std::unique_ptr<CudaKernel> create_global(ofsdp_device&, const Problem& p) {
  const Shape& x = p.in(0).shape;
  WindowExtent w;
  w.dtype = p.in(0).dtype;
  w.images = x[0];
  w.channels = x[1];
  w.channels_last = p.in(0).layout == Layout::kChannelsLast;
  for (int axis = 2; axis < x.rank(); ++axis) {
    w.in[3 - x.rank() + axis] = w.kernel[3 - x.rank() + axis] = x[axis];
  }
  return make_cuda_kernel([w, winners = p.has_out(1)](cudaStream_t stream, const ofsdp_launch& l) {
    return max_pool(w, l.inputs[0], l.outputs[0], winners ? l.outputs[1] : nullptr, nullptr, false,
                    false, stream);
  });
}

// (dy, winners) -> dx
bool accepts_max_grad(const Problem& p) {
  return is_supported(p.out(0)) && p.in(0).layout == p.out(0).layout &&
         p.in(1).layout == p.out(0).layout;
}

std::unique_ptr<CudaKernel> create_max_grad(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel(
      [w = extent_of(p, p.out(0).shape, p.out(0))](cudaStream_t stream, const ofsdp_launch& l) {
        return max_pool_grad(w, l.inputs[0], l.inputs[1], l.outputs[0], stream);
      });
}

bool accepts_average(const Problem& p) {
  return is_supported(p.in(0)) && p.in(0).layout == p.out(0).layout;
}

bool counts_pad(const Problem& p) { return p.attributes.i("count_include_pad", 0) != 0; }

std::unique_ptr<CudaKernel> create_average(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel([w = extent_of(p, p.in(0).shape, p.in(0)), pad = counts_pad(p)](
                              cudaStream_t stream, const ofsdp_launch& l) {
    return average_pool(w, pad, l.inputs[0], l.outputs[0], stream);
  });
}

std::unique_ptr<CudaKernel> create_average_grad(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel([w = extent_of(p, p.out(0).shape, p.out(0)), pad = counts_pad(p)](
                              cudaStream_t stream, const ofsdp_launch& l) {
    return average_pool_grad(w, pad, l.inputs[0], l.outputs[0], stream);
  });
}

}  // namespace

void add_pools(CudaImplementations& list) {
  list.push_back({"MaxPool", "own", accepts_max, create_max});
  list.push_back({"ofsdp.MaxPoolGrad", "own", accepts_max_grad, create_max_grad});
  list.push_back({"GlobalMaxPool", "own", accepts_global, create_global});
  list.push_back({"AveragePool", "own", accepts_average, create_average});
  list.push_back({"ofsdp.AveragePoolGrad", "own", accepts_average, create_average_grad});
}

}  // namespace ofsdp::kernels::cuda
