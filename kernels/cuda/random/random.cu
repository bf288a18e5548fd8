// Dropout: a thread draws one Philox block (four words) for four elements with stride 16. 16
// threads cover 64 elements, so each access of a half warp covers whole 32-byte sectors. Other
// draws: a thread per element.
#include <cmath>
#include <cstring>

#include "kernels/core/philox.h"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/random/random.h"

namespace ofsdp::kernels::cuda {
namespace {

struct Draw {
  PhiloxKey key;
  uint64_t sample, element;

  __device__ uint32_t bits(uint64_t per_element, uint64_t which) const {
    return philox_element(key, sample, element * per_element + which);
  }
  __device__ double uniform() const { return static_cast<double>(bits(1, 0) >> 8) * 0x1p-24; }
  __device__ double normal() const {
    const double u = (static_cast<double>(bits(2, 0)) + 0.5) * 0x1p-32;
    const double v = static_cast<double>(bits(2, 1)) * 0x1p-32;
    return sqrt(-2 * log(u)) * cos(2 * 3.141592653589793238462643383279502884 * v);
  }
};

template <typename X>
__device__ inline double number(const RandomCall& c, int64_t i) {
  return static_cast<double>(to_float(static_cast<const X*>(c.x)[i]));
}

// Samples a class by inverting the cumulative softmax of the row.
template <typename X>
__device__ inline double class_of(const RandomCall& c, const Draw& draw, int64_t i) {
  const int64_t row = i / c.draws * c.classes;
  double max = number<X>(c, row), sum = 0;
  for (int64_t k = 1; k < c.classes; ++k) max = fmax(max, number<X>(c, row + k));
  for (int64_t k = 0; k < c.classes; ++k) sum += exp(number<X>(c, row + k) - max);
  double rest = draw.uniform() * sum;
  for (int64_t k = 0; k < c.classes - 1; ++k) {
    rest -= exp(number<X>(c, row + k) - max);
    if (rest < 0) return static_cast<double>(k);
  }
  return static_cast<double>(c.classes - 1);
}

template <typename T>
__device__ inline T stored(double v) {
  if constexpr (sizeof(T) == sizeof(bool)) {
    return static_cast<T>(v != 0);
  } else {
    return Stored<T>::from(static_cast<Compute<T>>(v));
  }
}

// A thread per y element.
template <typename X, typename Y>
OFSDP_CUDA_KERNEL random_kernel(RandomCall c) {
  OFSDP_CUDA_ITEM(i, c.numel);
  const int64_t sample = i / c.sample_size;
  const int64_t index = c.sample_index == nullptr ? 0 : c.sample_index[sample];
  const Draw draw{philox_key(c.random->seed, c.node_seed, c.random->step),
                  static_cast<uint64_t>(index), static_cast<uint64_t>(i - sample * c.sample_size)};
  double v = 0;
  switch (c.kind) {
    case RandomKind::kNormal:
      v = c.a + c.b * draw.normal();
      break;
    case RandomKind::kUniform:
      v = c.a + (c.b - c.a) * draw.uniform();
      break;
    case RandomKind::kBernoulli:
      v = draw.uniform() < number<X>(c, i) ? 1 : 0;
      break;
    case RandomKind::kMultinomial:
      v = class_of<X>(c, draw, i);
      break;
  }
  static_cast<Y*>(c.y)[i] = stored<Y>(v);
}

template <typename F>
cudaError_t with_stored(DType dtype, const F& f) {
  return dtype == DType::kBool ? f(uint8_t{}) : with_number(dtype, f);
}

template <typename X>
cudaError_t draw_from(const RandomCall& c, cudaStream_t stream) {
  return with_stored(c.dtype,
                     [&]<typename Y>(Y) { return over(c.numel, stream, random_kernel<X, Y>, c); });
}

constexpr int kGroup = 64, kApart = 16;  // elements per 16 threads; stride of a thread

// draws: threads per sample.
template <typename T>
OFSDP_CUDA_KERNEL dropout_kernel(DropoutCall c, int64_t draws, uint32_t threshold, float scale) {
  __shared__ PhiloxKey key;
  if (threadIdx.x == 0) key = philox_key(c.random->seed, c.node_seed, c.random->step);
  __syncthreads();
  const int64_t draw = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t sample = draw / draws;
  if (sample >= c.samples) return;
  const int64_t block = draw - sample * draws;
  const int64_t first = block / kApart * kGroup + block % kApart;
  const int64_t index = c.sample_index == nullptr ? 0 : c.sample_index[sample];
  const PhiloxCounter words =
      philox_block(key, static_cast<uint64_t>(index), static_cast<uint64_t>(block));
  unrolled<4>([&](int w) {
    const int64_t e = first + w * kApart;
    if (e >= c.elements) return;
    const int64_t at = sample * c.elements + e;
    const bool kept = (words[w] >> 8) >= threshold;
    const float x = to_float(static_cast<const T*>(c.x)[at]);
    static_cast<T*>(c.y)[at] = Stored<T>::from(kept ? x * scale : 0.0f);
    if (c.mask != nullptr) c.mask[at] = kept;
  });
}

// A thread per dx pack.
template <typename T, int V>
OFSDP_CUDA_KERNEL grad_kernel(const T* dy, const bool* mask, T* dx, int64_t n, float scale) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= n) return;
  float d[V];
  load<V>(dy + i, d);
  const Pack<bool, V> kept = *reinterpret_cast<const Pack<bool, V>*>(mask + i);
  unrolled<V>([&](int k) { d[k] = kept.v[k] ? d[k] * scale : 0.0f; });
  store<V>(dx + i, d);
}

float scale_of(double ratio) { return static_cast<float>(ratio >= 1 ? 0 : 1 / (1 - ratio)); }

}  // namespace

uint64_t seeded(uint64_t node_seed, float seed) {
  uint32_t bits = 0;
  std::memcpy(&bits, &seed, sizeof(bits));
  return node_seed ^ mix64(bits);
}

bool has_random(DType dtype) { return dtype == DType::kBool || is_number(dtype); }

cudaError_t draw_random(const RandomCall& c, cudaStream_t stream) {
  if (c.from == DType::kFloat64) return draw_from<double>(c, stream);
  return with_float(c.from, [&]<typename X>(X) { return draw_from<X>(c, stream); });
}

cudaError_t dropout(const DropoutCall& c, cudaStream_t stream) {
  const int64_t draws = blocks_for(c.elements, kGroup) * kApart;
  const auto threshold = static_cast<uint32_t>(std::ceil(c.ratio * 0x1p24));
  return with_float(c.dtype, [&]<typename T>(T) {
    return over(c.samples * draws, stream, dropout_kernel<T>, c, draws, threshold,
                scale_of(c.ratio));
  });
}

cudaError_t dropout_grad(DType dtype, const void* dy, const bool* mask, void* dx, int64_t numel,
                         double ratio, cudaStream_t stream) {
  return with_float(dtype, [&]<typename T>(T) {
    constexpr int V = kPack<T>;
    return launch_over_packs<V>(aligned16(numel, 1, dy, mask, dx), numel, stream, grad_kernel<T, V>,
                                grad_kernel<T, 1>, dy, mask, dx, numel, scale_of(ratio));
  });
}

}  // namespace ofsdp::kernels::cuda
