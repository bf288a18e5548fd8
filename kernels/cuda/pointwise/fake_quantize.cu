// A thread quantizes a 16-byte pack, or one element if the scale changes within packs. For the
// gradient of a scale, a warp or block sums a segment of the elements that share the scale; a
// thread per scale then adds the segments in order.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/pointwise.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kMaxPerWarp = 2048;  // elements per scale; with more, blocks sum them
constexpr int64_t kSegment = 1 << 14;  // elements per block

template <typename T>
struct Scales {
  const T *scale, *zero;

  __device__ float of(int64_t k) const { return to_float(scale[k]); }
  __device__ float zero_of(int64_t k) const { return zero == nullptr ? 0.0f : to_float(zero[k]); }
};

// to = f(from, x, scale, zero) for each element of a pack; `from` may be x or `to`.
template <typename T, int V, typename F>
__device__ inline void each_of_pack(int64_t pack, const ScaleMap& map, const Scales<T>& s,
                                    const T* from, const T* x, T* to, const F& f) {
  const int64_t first = pack * V, k = map.index(first);
  const int64_t step = V == 1 ? 0 : map.step();
  float given[V], value[V];
  load<V>(x + first, value);
  load<V>(from + first, given);
  unrolled<V>([&](int i) {
    const int64_t at = k + i * step;
    value[i] = f(given[i], value[i], s.of(at), s.zero_of(at));
  });
  store<V>(to + first, value);
}

// A thread per y pack.
template <typename T, int V>
OFSDP_CUDA_KERNEL quantize_kernel(int64_t packs, ScaleMap map, IntegerRange range, Scales<T> s,
                                  const T* x, T* y) {
  OFSDP_CUDA_ITEM(pack, packs);
  each_of_pack<T, V>(pack, map, s, x, x, y, [&](float, float v, float scale, float zero) {
    return fake_quantized(v, scale, zero, range);
  });
}

// A thread per dx pack.
template <typename T, int V>
OFSDP_CUDA_KERNEL grad_kernel(int64_t packs, ScaleMap map, IntegerRange range, Scales<T> s,
                              const T* dy, const T* x, T* dx) {
  OFSDP_CUDA_ITEM(pack, packs);
  each_of_pack<T, V>(pack, map, s, dy, x, dx, [&](float d, float v, float scale, float zero) {
    return fake_quantized_grad(d, v, scale, zero, range);
  });
}

int64_t segments_of(const ScaleMap& map) {
  return std::max<int64_t>(blocks_for(map.most_sharing(), kSegment), 1);
}

// G threads sum a segment of one scale's elements.
template <typename T, int G>
OFSDP_CUDA_KERNEL slopes_kernel(ScaleMap map, IntegerRange range, Scales<T> s, const T* dy,
                                const T* x, int64_t segments, double* sums) {
  __shared__ double spare[kThreads / kWarp];
  const int64_t result = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / G;
  const bool in_range = result < map.scales() * segments;
  const int64_t k = in_range ? result / segments : 0, begin = result % segments * kSegment;
  const ScaleMap::Sharing elements = map.sharing(k);
  const int64_t left = in_range ? elements.count - begin : 0, n = left < kSegment ? left : kSegment;
  const float scale = s.of(k), zero = s.zero_of(k);
  double sum = 0;
  for (int64_t j = threadIdx.x % G; j < n; j += G) {
    const int64_t i = elements.element(begin + j);
    const float slope = fake_quantized_scale_slope(to_float(x[i]), scale, zero, range);
    sum += static_cast<double>(to_float(dy[i]) * slope);
  }
  sum = group_reduce<G>(sum, Add{}, spare);
  if (in_range && threadIdx.x % G == 0) sums[result] = sum;
}

// A thread per scale adds the segments in order.
template <typename T>
OFSDP_CUDA_KERNEL scale_kernel(int64_t scales, int64_t segments, double step, const double* sums,
                               T* ds) {
  OFSDP_CUDA_ITEM(k, scales);
  double sum = 0;
  for (int64_t i = 0; i < segments; ++i) sum += sums[k * segments + i];
  ds[k] = Stored<T>::from(static_cast<float>(sum * step));
}

template <typename T>
Scales<T> scales_of(const FakeQuantizeOperands& o) {
  return {static_cast<const T*>(o.scale), static_cast<const T*>(o.zero)};
}

template <typename T, typename... P>
bool in_packs(const ScaleMap& map, const P*... pointers) {
  return map.run() % kPack<T> == 0 && aligned16(map.elements(), sizeof(T), pointers...);
}

}  // namespace

cudaError_t fake_quantize(const FakeQuantizeParams& e, const FakeQuantizeOperands& o, void* y,
                          cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    constexpr int V = kPack<T>;
    const int64_t n = e.map.elements();
    const bool packs = in_packs<T>(e.map, o.x, y);
    return launch_over_packs<V>(packs, n, stream, quantize_kernel<T, V>, quantize_kernel<T, 1>,
                                packs ? n / V : n, e.map, e.range, scales_of<T>(o),
                                static_cast<const T*>(o.x), static_cast<T*>(y));
  });
}

cudaError_t fake_quantize_grad(const FakeQuantizeParams& e, const FakeQuantizeOperands& o, void* dx,
                               cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    constexpr int V = kPack<T>;
    const int64_t n = e.map.elements();
    const bool packs = in_packs<T>(e.map, o.dy, o.x, dx);
    return launch_over_packs<V>(packs, n, stream, grad_kernel<T, V>, grad_kernel<T, 1>,
                                packs ? n / V : n, e.map, e.range, scales_of<T>(o),
                                static_cast<const T*>(o.dy), static_cast<const T*>(o.x),
                                static_cast<T*>(dx));
  });
}

size_t fake_quantize_scale_grad_scratch(const FakeQuantizeParams& e) {
  return static_cast<size_t>(e.map.scales() * segments_of(e.map)) * sizeof(double);
}

cudaError_t fake_quantize_scale_grad(const FakeQuantizeParams& e, const FakeQuantizeOperands& o,
                                     void* ds, void* scratch, cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    const int64_t segments = segments_of(e.map), sums = e.map.scales() * segments;
    const bool blocks = e.map.most_sharing() > kMaxPerWarp;
    auto* const partial = static_cast<double*>(scratch);
    OFSDP_CUDA_TRY(launch_blocks(stream, blocks ? sums : blocks_for(sums, kThreads / kWarp),
                                 kThreads,
                                 blocks ? slopes_kernel<T, kThreads> : slopes_kernel<T, kWarp>,
                                 e.map, e.range, scales_of<T>(o), static_cast<const T*>(o.dy),
                                 static_cast<const T*>(o.x), segments, partial));
    return over(e.map.scales(), stream, scale_kernel<T>, e.map.scales(), segments, e.step,
                static_cast<const double*>(partial), static_cast<T*>(ds));
  });
}

}  // namespace ofsdp::kernels::cuda
