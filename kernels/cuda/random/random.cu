#include <cmath>
#include <cstring>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/random/philox.cuh"
#include "kernels/cuda/random/random.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct Draw {
  PhiloxKey key;
  uint64_t sample, element;

  __device__ uint32_t bits(uint64_t per_element, uint64_t which) const {
    const uint64_t e = element * per_element + which;
    uint32_t words[4];
    philox(e / 64 * 16 + e % 16, sample, key, words);
    const uint64_t word = e / 16 % 4;
    return word == 0 ? words[0] : word == 1 ? words[1] : word == 2 ? words[2] : words[3];
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

// The first class whose sum passes its share of all.
template <typename X>
__device__ inline double class_of(const RandomCall& c, const Draw& draw, int64_t i) {
  const int64_t row = i / c.draws * c.classes;
  double most = number<X>(c, row), sum = 0;
  for (int64_t k = 1; k < c.classes; ++k) most = fmax(most, number<X>(c, row + k));
  for (int64_t k = 0; k < c.classes; ++k) sum += exp(number<X>(c, row + k) - most);
  double rest = draw.uniform() * sum;
  for (int64_t k = 0; k < c.classes - 1; ++k) {
    rest -= exp(number<X>(c, row + k) - most);
    if (rest < 0) return static_cast<double>(k);
  }
  return static_cast<double>(c.classes - 1);
}

template <typename T>
__device__ inline T stored(double v) {
  if constexpr (sizeof(T) == sizeof(bool)) {
    return static_cast<T>(v != 0);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(v);
  } else {
    return Stored<T>::from(static_cast<Compute<T>>(v));
  }
}

template <typename X, typename Y>
__global__ void __launch_bounds__(kThreads) random_kernel(RandomCall c) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= c.numel) return;
  const int64_t sample = i / c.sample_size;
  const int64_t index = c.sample_index == nullptr ? 0 : c.sample_index[sample];
  const Draw draw{key_of(*c.random, c.node_seed), static_cast<uint64_t>(index),
                  static_cast<uint64_t>(i - sample * c.sample_size)};
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
  switch (dtype) {
    case DType::kFloat64:
      return f(double{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kBool:
      return f(uint8_t{});
    default:
      return with_float(dtype, f);
  }
}

template <typename X>
cudaError_t draw_from(const RandomCall& c, cudaStream_t stream) {
  return with_stored(c.dtype, [&](auto y) {
    return launch_blocks(stream, blocks_for(c.numel, kThreads), kThreads,
                         random_kernel<X, decltype(y)>, c);
  });
}

}  // namespace

uint64_t seeded(uint64_t node_seed, float seed) {
  uint32_t bits = 0;
  std::memcpy(&bits, &seed, sizeof(bits));
  return node_seed ^ mix64(bits);
}

bool has_random(DType dtype) {
  return with_stored(dtype, [](auto) { return cudaSuccess; }) == cudaSuccess;
}

cudaError_t draw_random(const RandomCall& c, cudaStream_t stream) {
  if (c.from == DType::kFloat64) return draw_from<double>(c, stream);
  return with_float(c.from, [&](auto x) { return draw_from<decltype(x)>(c, stream); });
}

}  // namespace ofsdp::kernels::cuda
