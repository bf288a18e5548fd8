// ofsdp.FakeQuantize and its gradients: kernels/cuda/pointwise/fake_quantize.h.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pointwise/fake_quantize.h"

namespace ofsdp::kernels::cuda {
namespace {

FakeQuantizeExtent extent_of(const Problem& p, size_t x) {
  const ops::FakeQuantization f(p.attributes, p.in(x), p.in(x + 1));
  return {p.in(x).dtype, f.map, f.range(), f.step()};
}

FakeQuantizeOperands operands_of(const Launch& l, size_t x) {
  return {x > 0 ? l.in(0) : nullptr, l.in(x), l.in(x + 1), l.in(x + 2)};
}

Acceptance accepts_quantization(const Problem& p) {
  return accept(accepts_plain_floats(p), {alike(p.all_dtype(p.in(0).dtype))});
}

std::unique_ptr<CudaKernel> create_quantize(DeviceState&, const Problem& p) {
  return make_cuda_kernel([e = extent_of(p, 0)](cudaStream_t stream, const Launch& l) {
    return fake_quantize(e, operands_of(l, 0), l.out(0), stream);
  });
}

std::unique_ptr<CudaKernel> create_quantize_grad(DeviceState&, const Problem& p) {
  return make_cuda_kernel([e = extent_of(p, 1)](cudaStream_t stream, const Launch& l) {
    return fake_quantize_grad(e, operands_of(l, 1), l.out(0), stream);
  });
}

std::unique_ptr<CudaKernel> create_scale_grad(DeviceState&, const Problem& p) {
  const FakeQuantizeExtent e = extent_of(p, 1);
  return make_cuda_kernel(
      [e](cudaStream_t stream, const Launch& l) {
        return fake_quantize_scale_grad(e, operands_of(l, 1), l.out(0), l.workspace, stream);
      },
      fake_quantize_scale_grad_scratch(e));
}

}  // namespace

void add_fake_quantize(CudaImplementations& list) {
  list.insert(list.end(),
              {{"ofsdp.FakeQuantize", "own", accepts_quantization, create_quantize},
               {"ofsdp.FakeQuantizeGrad", "own", accepts_quantization, create_quantize_grad},
               {"ofsdp.FakeQuantizeScaleGrad", "own", accepts_quantization, create_scale_grad}});
}

}  // namespace ofsdp::kernels::cuda
