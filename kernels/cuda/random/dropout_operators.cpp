// Dropout and its gradient: kernels/cuda/random/dropout.h.
#include <cstddef>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/random/dropout.h"

namespace ofsdp::kernels::cuda {
namespace {

// RandomInput is how ofsdp_step_numbers begins; the sample numbers lie behind it.
static_assert(offsetof(ofsdp_step_numbers, seed) == offsetof(RandomInput, seed) &&
              offsetof(ofsdp_step_numbers, step) == offsetof(RandomInput, step));

bool accepts(const Problem& p) {
  const bool known =
      (!p.has_in(1) || p.constant(1) != nullptr) && (!p.has_in(2) || p.constant(2) != nullptr);
  return p.all_plain() && is_float(p.in(0).dtype) && known;
}

// Outside of training: y = x, and all is kept.
std::unique_ptr<CudaKernel> create_idle(const Problem& p) {
  return make_cuda_kernel([bytes = p.out(0).bytes(), numel = static_cast<size_t>(p.out(0).numel()),
                           mask = p.has_out(1)](cudaStream_t stream, const ofsdp_launch& l) {
    if (mask) {
      const cudaError_t error = cudaMemsetAsync(l.outputs[1], 1, numel, stream);
      if (error != cudaSuccess) return error;
    }
    if (l.outputs[0] == l.inputs[0]) return cudaSuccess;
    return cudaMemcpyAsync(l.outputs[0], l.inputs[0], bytes, cudaMemcpyDeviceToDevice, stream);
  });
}

std::unique_ptr<CudaKernel> create(ofsdp_device&, const Problem& p) {
  if (known_scalar(p, 2, 0) == 0) return create_idle(p);
  DropoutCall dropped;
  dropped.dtype = p.in(0).dtype;
  dropped.node_seed = p.node_seed;
  dropped.ratio = known_scalar(p, 1, 0.5);
  return make_cuda_kernel([dropped, numel = p.in(0).numel(), mask = p.has_out(1)](
                              cudaStream_t stream, const ofsdp_launch& l) {
    DropoutCall c = dropped;
    const bool cut = l.samples > 0 && numel % l.samples == 0;
    c.samples = cut ? l.samples : 1;
    c.elements = numel / c.samples;
    c.random = reinterpret_cast<const RandomInput*>(l.numbers);
    c.sample_index = l.samples > 0 ? reinterpret_cast<const int64_t*>(l.numbers + 1) : nullptr;
    c.x = l.inputs[0];
    c.y = l.outputs[0];
    c.mask = mask ? static_cast<bool*>(l.outputs[1]) : nullptr;
    return dropout(c, stream);
  });
}

bool accepts_grad(const Problem& p) { return p.all_plain() && is_float(p.in(0).dtype); }

std::unique_ptr<CudaKernel> create_grad(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel([dtype = p.in(0).dtype, n = p.in(0).numel(),
                           ratio = static_cast<double>(p.attributes.f("ratio", 0.5f))](
                              cudaStream_t stream, const ofsdp_launch& l) {
    return dropout_grad(dtype, l.inputs[0], static_cast<const bool*>(l.inputs[1]), l.outputs[0], n,
                        ratio, stream);
  });
}

}  // namespace

void add_dropout(CudaImplementations& list) {
  list.push_back({"Dropout", "own", accepts, create});
  list.push_back({"ofsdp.DropoutGrad", "own", accepts_grad, create_grad});
}

}  // namespace ofsdp::kernels::cuda
