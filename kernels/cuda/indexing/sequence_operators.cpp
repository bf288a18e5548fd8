// ReverseSequence and TensorScatter: kernels/cuda/indexing/sequence.h.
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/indexing/sequence.h"

namespace ofsdp::kernels::cuda {
namespace {

bool accepts(const Problem& p) { return p.all_plain(); }

std::unique_ptr<CudaKernel> create_reverse(ofsdp_device&, const Problem& p) {
  const Shape& x = p.in(0).shape;
  ReverseExtent e;
  e.time_first = p.attributes.i("time_axis", 0) == 0;
  e.steps = x[e.time_first ? 0 : 1];
  e.batch = x[e.time_first ? 1 : 0];
  e.bytes = x.numel(2, x.rank()) * static_cast<int64_t>(dtype_size(p.in(0).dtype));
  return make_cuda_kernel([e](cudaStream_t stream, const ofsdp_launch& l) {
    ReverseExtent call = e;
    call.lengths = static_cast<const int64_t*>(l.inputs[1]);
    call.fault = fault_of(l);
    return reverse_sequence(call, l.inputs[0], l.outputs[0], stream);
  });
}

std::unique_ptr<CudaKernel> create_cache(ofsdp_device&, const Problem& p) {
  const Shape& cache = p.out(0).shape;
  const int64_t axis = p.attributes.i("axis", -2);
  const Lines lines = lines_along(cache, axis);
  CacheExtent e;
  e.outer = lines.outer;
  e.size = lines.n;
  e.n = lines_along(p.in(1).shape, axis).n;
  e.bytes = lines.inner * static_cast<int64_t>(dtype_size(p.out(0).dtype));
  e.per_batch = std::max<int64_t>(lines.outer / std::max<int64_t>(cache[0], 1), 1);
  e.circular = p.attributes.s("mode", "linear") == "circular";
  const bool placed = p.has_in(2);
  return make_cuda_kernel(
      [=, bytes = p.out(0).bytes()](cudaStream_t stream, const ofsdp_launch& l) {
        CacheExtent call = e;
        if (placed) call.first = static_cast<const int64_t*>(l.inputs[2]);
        call.fault = fault_of(l);
        if (l.outputs[0] != l.inputs[0]) {
          OFSDP_CUDA_TRY(
              cudaMemcpyAsync(l.outputs[0], l.inputs[0], bytes, cudaMemcpyDeviceToDevice, stream));
        }
        return write_cache(call, l.inputs[1], l.outputs[0], stream);
      });
}

}  // namespace

void add_sequences(CudaImplementations& list) {
  list.push_back({"ReverseSequence", "own", accepts, create_reverse});
  list.push_back({"TensorScatter", "own", accepts, create_cache});
}

}  // namespace ofsdp::kernels::cuda
