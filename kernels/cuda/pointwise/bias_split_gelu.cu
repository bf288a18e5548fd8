// com.microsoft.BiasSplitGelu: y[r, i] = z[r, i] gelu(z[r, n + i]), z = x + bias, x [rows, 2 n]. A
// thread computes a 16-byte pack of y, or one element if n is not a multiple of the pack.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pointwise/formulas.cuh"

namespace ofsdp::kernels::cuda {
namespace {

// A thread per y pack (or element).
template <typename T, int V>
OFSDP_CUDA_KERNEL gate_kernel(int64_t packs, int64_t n, const T* x, const T* bias, T* y) {
  OFSDP_CUDA_ITEM(pack, packs);
  const int64_t at = pack * V, row = at / n, i = at - row * n;
  const T* from = x + row * 2 * n + i;
  Compute<T> value[V], gate[V], shift[V];
  load<V>(from, value);
  load<V>(bias + i, shift);
  unrolled<V>([&](int k) { value[k] += shift[k]; });
  load<V>(from + n, gate);
  load<V>(bias + n + i, shift);
  unrolled<V>([&](int k) { value[k] *= gelu_of<DeviceMath>(gate[k] + shift[k]); });
  store<V>(y + at, value);
}

std::unique_ptr<CudaKernel> create(DeviceState&, const Problem& p) {
  return make_cuda_kernel([dtype = p.in(0).dtype, n = p.in(1).numel() / 2,
                           numel = p.out(0).numel()](cudaStream_t stream, const Launch& l) {
    return with_float(dtype, [&]<typename T>(T) {
      constexpr int V = kPack<T>;
      const bool packs = aligned16(n, sizeof(T), l.in(0), l.in(1), l.out(0));
      return launch_over_packs<V>(packs, numel, stream, gate_kernel<T, V>, gate_kernel<T, 1>,
                                  packs ? numel / V : numel, n, l.in(0), l.in(1), l.out(0));
    });
  });
}

}  // namespace

void add_bias_split_gelu(CudaImplementations& list) {
  list.push_back({"com.microsoft.BiasSplitGelu", "own", accepts_plain_floats, create});
}

}  // namespace ofsdp::kernels::cuda
