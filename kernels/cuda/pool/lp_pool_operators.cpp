// LpPool, GlobalLpPool and their common gradient: kernels/cuda/pool/lp_pool.h.
#include "kernels/cuda/conv/window_extent.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pool/lp_pool.h"
#include "kernels/ops/pool/pool_shape.h"

namespace ofsdp::kernels::cuda {
namespace {

bool accepts(const Problem& p) {
  return p.all_plain() && is_float(p.in(0).dtype) && p.in(0).shape.rank() <= 5;
}

WindowExtent extent_of(const Problem& p, const TensorDesc& x) {
  return window_extent(ops::known_pool(p.attributes, x.shape), x.shape[0], x.shape[1], x.dtype,
                       false);
}

std::unique_ptr<CudaKernel> make_forward(const Problem& p, const WindowExtent& w) {
  return make_cuda_kernel(
      [w, power = p.attributes.i("p", 2)](cudaStream_t stream, const ofsdp_launch& l) {
        return lp_pool(w, power, l.inputs[0], l.outputs[0], stream);
      });
}

std::unique_ptr<CudaKernel> create(ofsdp_device&, const Problem& p) {
  return make_forward(p, extent_of(p, p.in(0)));
}

// One window over the whole plane.
std::unique_ptr<CudaKernel> create_global(ofsdp_device&, const Problem& p) {
  const Shape& x = p.in(0).shape;
  WindowExtent w;
  w.dtype = p.in(0).dtype;
  w.images = x[0];
  w.channels = x[1];
  for (int axis = 2; axis < x.rank(); ++axis) {
    w.in[3 - x.rank() + axis] = w.kernel[3 - x.rank() + axis] = x[axis];
  }
  return make_forward(p, w);
}

// (dy, x, y)
std::unique_ptr<CudaKernel> create_grad(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel([w = extent_of(p, p.in(1)), power = p.attributes.i("p", 2)](
                              cudaStream_t stream, const ofsdp_launch& l) {
    return lp_pool_grad(w, power, l.inputs[0], l.inputs[1], l.inputs[2], l.outputs[0], stream);
  });
}

}  // namespace

void add_lp_pools(CudaImplementations& list) {
  list.push_back({"LpPool", "own", accepts, create});
  list.push_back({"GlobalLpPool", "own", accepts, create_global});
  list.push_back({"ofsdp.LpPoolGrad", "own", accepts, create_grad});
}

}  // namespace ofsdp::kernels::cuda
