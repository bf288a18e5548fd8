#include "kernels/cuda/attention/attention_delta.h"
#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256, kLanes = 8;  // of a query

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(AttentionExtent e, const T* dy, const T* y, HeadStrides at_y, float* delta) {
  const int64_t item = int64_t{blockIdx.x} * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const bool there = item < e.batch * e.heads * e.queries;
  float sum = 0;
  if (there) {
    const int64_t query = item % e.queries, h = item / e.queries % e.heads;
    const int64_t b = item / e.queries / e.heads;
    const T* left = dy + b * e.y.batch + h * e.y.head + query * e.y.row;
    const T* right = y + b * at_y.batch + h * at_y.head + query * at_y.row;
    for (int64_t i = lane * N; i < e.v_width; i += kLanes * N) {
      float p[N], q[N];
      load<N>(left + i, p);
      load<N>(right + i, q);
#pragma unroll
      for (int j = 0; j < N; ++j) sum += p[j] * q[j];
    }
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (there && lane == 0) delta[item] = sum;
}

bool in_packs(const AttentionExtent& e, const AttentionGradient& g, size_t size) {
  const auto pack = static_cast<int64_t>(16 / size);
  bool even = true;
  for (const HeadStrides& s : {e.y, g.y_strides}) {
    even = even && s.batch % pack == 0 && s.head % pack == 0 && s.row % pack == 0;
  }
  return even && aligned16(e.v_width, size, g.dy, g.y);
}

}  // namespace

cudaError_t attention_delta(const AttentionExtent& e, const AttentionGradient& g, float* delta,
                            cudaStream_t stream) {
  return with_float(e.dtype, [&](auto t) {
    using T = decltype(t);
    const int64_t blocks = blocks_for(e.batch * e.heads * e.queries, kThreads / kLanes);
    const auto launch = [&](auto kernel) {
      return launch_blocks(stream, blocks, kThreads, kernel, e, static_cast<const T*>(g.dy),
                           static_cast<const T*>(g.y), g.y_strides, delta);
    };
    return in_packs(e, g, sizeof(T)) ? launch(delta_kernel<T, kPack<T>>)
                                     : launch(delta_kernel<T, 1>);
  });
}

}  // namespace ofsdp::kernels::cuda
