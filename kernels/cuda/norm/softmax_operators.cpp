// Softmax, its logarithm and their gradients: kernels/cuda/norm/softmax.h.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/norm/softmax.h"

namespace ofsdp::kernels::cuda {
namespace {

bool accepts(const Problem& p) {
  return p.all_plain() && is_float(p.in(0).dtype) && p.all_dtype(p.in(0).dtype);
}

SoftmaxExtent extent_of(const Problem& p, bool log) {
  const Shape& shape = p.out(0).shape;
  const int axis = axis_of(p.attributes, "axis", -1, shape.rank());
  SoftmaxExtent e;
  e.dtype = p.out(0).dtype;
  e.outer = shape.numel(0, axis);
  e.classes = shape.rank() == 0 ? 1 : shape[axis];
  e.inner = shape.numel(axis + 1, shape.rank());
  e.log = log;
  return e;
}

CudaImplementation forward(const char* op, bool log) {
  return {op, "own", accepts, [log](ofsdp_device&, const Problem& p) {
            return make_cuda_kernel(
                [e = extent_of(p, log)](cudaStream_t stream, const ofsdp_launch& l) {
                  return softmax(e, l.inputs[0], l.outputs[0], stream);
                });
          }};
}

CudaImplementation backward(const char* op, bool log) {
  return {op, "own", accepts, [log](ofsdp_device&, const Problem& p) {
            return make_cuda_kernel(
                [e = extent_of(p, log)](cudaStream_t stream, const ofsdp_launch& l) {
                  return softmax_grad(e, l.inputs[0], l.inputs[1], l.outputs[0], stream);
                });
          }};
}

}  // namespace

void add_softmax(CudaImplementations& list) {
  list.push_back(forward("Softmax", false));
  list.push_back(forward("LogSoftmax", true));
  list.push_back(backward("ofsdp.SoftmaxGrad", false));
  list.push_back(backward("ofsdp.LogSoftmaxGrad", true));
}

}  // namespace ofsdp::kernels::cuda
