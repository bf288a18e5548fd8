// A kernel per dtype with a uniform switch over kinds. Terms are double, so compute hides only for
// short reductions; reduce.cu has the fast reductions.
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/strided_index.h"
#include "kernels/cuda/reduce/reduce.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kMaxPerWarp = 2048;  // elements per result; with more, a block reduces them

// Accumulator type: double for floats; integers wrap.
template <typename T>
using Accumulator = std::conditional_t<std::is_integral_v<T>, T, double>;

template <typename T>
__device__ inline Accumulator<T> value_of(T v) {
  return static_cast<Accumulator<T>>(to_float(v));
}
template <typename T>
__device__ inline T stored(Accumulator<T> v) {
  return Stored<T>::from(static_cast<Compute<T>>(v));
}

template <typename V>
struct Limits {
  using L = std::numeric_limits<V>;
  static constexpr V kMin = std::is_integral_v<V> ? L::lowest() : -L::infinity();
  static constexpr V kMax = std::is_integral_v<V> ? L::max() : L::infinity();
};

struct Combine {
  GeneralReduceKind kind;
  template <typename V>
  __device__ V operator()(V a, V b) const {
    switch (kind) {
      OFSDP_CASE(GeneralReduceKind::kProduct, product_of(a, b));
      OFSDP_CASE(GeneralReduceKind::kMax, a > b || a != a ? a : b);
      OFSDP_CASE(GeneralReduceKind::kMin, a < b || a != a ? a : b);
      default:
        return sum_of(a, b);
    }
  }
  template <typename V>
  __device__ V start() const {
    switch (kind) {
      OFSDP_CASE(GeneralReduceKind::kProduct, V(1));
      OFSDP_CASE(GeneralReduceKind::kMax, Limits<V>::kMin);
      OFSDP_CASE(GeneralReduceKind::kMin, Limits<V>::kMax);
      default:
        return V(0);
    }
  }
  template <typename V>
  __device__ V term(V v) const {
    if (kind == GeneralReduceKind::kSumAbs) return v < V(0) ? product_of(v, V(-1)) : v;
    return kind == GeneralReduceKind::kSumSquares || kind == GeneralReduceKind::kNorm
               ? product_of(v, v)
               : v;
  }
};

// G threads per result; run() gives all of them the reduction of term(element).
template <typename T, int G>
struct Group {
  using V = Accumulator<T>;
  const GeneralReduceParams& e;
  const T* x;  // first element of this result
  bool in_range;
  V* spare;

  template <typename F>
  __device__ V run(const Combine& join, const F& term) const {
    V mine = join.start<V>();
    each([&](int64_t at) { mine = join(mine, term(value_of(x[at]))); });
    return group_reduce<G>(mine, join, spare);
  }
  template <typename F>
  __device__ void each(const F& f) const {
    for (int64_t i = in_range ? threadIdx.x % G : e.reduced.numel; i < e.reduced.numel; i += G) {
      int64_t at[1];
      places<1>(e.reduced, i, at);
      f(at[0]);
    }
  }
};

template <typename T, int G>
__device__ inline Group<T, G> group_of(const GeneralReduceParams& e, const T* x, int64_t result,
                                       Accumulator<T>* spare) {
  const bool in_range = result < e.kept.numel;
  int64_t at[1];
  places<1>(e.kept, in_range ? result : 0, at);
  return {e, x + at[0], in_range, spare};
}

// G threads per result; `spare` holds a partial result per warp.
template <typename T, int G>
OFSDP_CUDA_KERNEL fold_kernel(GeneralReduceKind kind, GeneralReduceParams e, const T* x, T* y) {
  using V = Accumulator<T>;
  __shared__ V spare[kThreads / kWarp];
  const int64_t result = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / G;
  const Group<T, G> group = group_of<T, G>(e, x, result, spare);
  const Combine join{kind};
  V v{};
  if constexpr (!std::is_integral_v<T>) {
    if (kind == GeneralReduceKind::kLogSumExp) {
      const double max = group.run(Combine{GeneralReduceKind::kMax}, [](V a) { return a; });
      const double shift = fabs(max) > 1.7e308 ? 0.0 : max;
      v = log(group.run(join, [&](V a) { return exp(a - shift); })) + shift;
    } else {
      v = group.run(join, [&](V a) { return join.term(a); });
    }
    if (kind == GeneralReduceKind::kMean) v /= static_cast<double>(e.reduced.numel);
    if (kind == GeneralReduceKind::kNorm) v = sqrt(v);
    if (kind == GeneralReduceKind::kLogSum) v = log(v);
  } else {
    v = group.run(join, [&](V a) { return join.term(a); });
  }
  if (group.in_range && threadIdx.x % G == 0) y[result] = stored<T>(v);
}

// G threads per normalized group of elements: the statistics, then a second read to write y.
template <typename T, int G>
OFSDP_CUDA_KERNEL normalize_kernel(Normalization kind, GeneralReduceParams e, const T* x, T* y) {
  __shared__ double spare[kThreads / kWarp];
  const int64_t result = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / G;
  const Group<T, G> group = group_of<T, G>(e, x, result, spare);
  T* const to = y + (group.x - x);
  const auto sum = [&](GeneralReduceKind fold, const auto& term) {
    return group.run(Combine{fold}, term);
  };
  double centre = 0, divisor = 0;
  if (kind == Normalization::kMeanVariance) {
    const auto count = static_cast<double>(e.reduced.numel);
    centre = sum(GeneralReduceKind::kSum, [](double v) { return v; }) / count;
    const double square =
        sum(GeneralReduceKind::kSum, [&](double v) { return (v - centre) * (v - centre); }) / count;
    divisor = sqrt(square) + 1e-9;
  } else if (kind == Normalization::kAbsolute) {
    divisor = sum(GeneralReduceKind::kSum, [](double v) { return fabs(v); });
  } else {
    divisor = sqrt(sum(GeneralReduceKind::kSum, [](double v) { return v * v; }));
  }
  group.each([&](int64_t at) {
    const double v = value_of(group.x[at]);
    to[at] = stored<T>(divisor == 0 ? 0.0 : (v - centre) / divisor);
  });
}

// dx = dy times the product of the nonzero elements, divided by x. With one zero, only that element
// has a gradient; with two, none has.
template <typename T, int G>
OFSDP_CUDA_KERNEL product_kernel(GeneralReduceParams e, const T* dy, const T* x, T* dx) {
  __shared__ double spare[kThreads / kWarp];
  const int64_t result = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / G;
  const Group<T, G> group = group_of<T, G>(e, x, result, spare);
  T* const to = dx + (group.x - x);
  const double zeros =
      group.run(Combine{GeneralReduceKind::kSum}, [](double v) { return v == 0 ? 1.0 : 0.0; });
  const double product =
      group.run(Combine{GeneralReduceKind::kProduct}, [](double v) { return v == 0 ? 1.0 : v; });
  const double d = group.in_range ? static_cast<double>(to_float(dy[result])) * product : 0;
  group.each([&](int64_t at) {
    const double v = value_of(group.x[at]);
    to[at] = stored<T>(zeros == 0 ? d / v : zeros == 1 && v == 0 ? d : 0.0);
  });
}

template <typename F>
cudaError_t with_folded(GeneralReduceKind kind, DType dtype, const F& f) {
  if (dtype == DType::kFloat64) return f(double{});
  const bool function =
      kind == GeneralReduceKind::kNorm || kind == GeneralReduceKind::kLogSum ||
      kind == GeneralReduceKind::kLogSumExp;  // a function is rounded once, after the sum
  const bool whole = !function && kind != GeneralReduceKind::kMean;
  if (dtype == DType::kInt32 && whole) return f(int32_t{});
  if (dtype == DType::kInt64 && whole) return f(int64_t{});
  return function ? with_float(dtype, f) : cudaErrorNotSupported;
}

template <typename... P, typename... A>
cudaError_t launch_groups(const GeneralReduceParams& e, cudaStream_t stream, void (*warp)(P...),
                          void (*block)(P...), A... arguments) {
  const bool many = e.reduced.numel > kMaxPerWarp;
  return launch_blocks(stream, many ? e.kept.numel : blocks_for(e.kept.numel, kThreads / kWarp),
                       kThreads, many ? block : warp, arguments...);
}

// A thread per line [outer, inner].
template <typename T>
OFSDP_CUDA_KERNEL sum_kernel(ScanParams e, const T* x, T* y) {
  OFSDP_CUDA_ITEM(line, e.outer * e.inner);
  const int64_t first = line / e.inner * e.n * e.inner + line % e.inner;
  Compute<T> sum = e.product ? 1 : 0;
  for (int64_t k = 0; k < e.n; ++k) {
    const int64_t at = first + (e.reverse ? e.n - 1 - k : k) * e.inner;
    const Compute<T> read = to_float(x[at]);
    const Compute<T> next = e.product ? product_of(sum, read) : sum_of(sum, read);
    y[at] = Stored<T>::from(e.exclusive ? sum : next);
    sum = next;
  }
}

// A thread per line: the products of what comes before, then from the end the sums of what follows.
OFSDP_CUDA_KERNEL running_product_grad_kernel(ScanParams e, const float* dy, const float* x,
                                              float* dx) {
  OFSDP_CUDA_ITEM(line, e.outer * e.inner);
  const int64_t first = line / e.inner * e.n * e.inner + line % e.inner;
  double before = 1, after = 0;
  for (int64_t k = 0; k < e.n; ++k) {
    const int64_t at = first + (e.reverse ? e.n - 1 - k : k) * e.inner;
    dx[at] = static_cast<float>(before);
    before *= static_cast<double>(x[at]);
  }
  for (int64_t k = e.n; k-- > 0;) {
    const int64_t at = first + (e.reverse ? e.n - 1 - k : k) * e.inner;
    const double d = static_cast<double>(dy[at]);
    const double sum = e.exclusive ? after : d + after;
    dx[at] = static_cast<float>(static_cast<double>(dx[at]) * sum);
    after = static_cast<double>(x[at]) * sum + (e.exclusive ? d : 0);
  }
}

}  // namespace

GeneralReduceParams general_reduce_params(DType dtype, const std::vector<int64_t>& shape,
                                          const std::vector<bool>& reduced) {
  const std::vector<int64_t> strides = dense_strides(shape);
  std::vector<int64_t> sizes[2], steps[2];
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const int which = reduced[axis] ? 1 : 0;
    sizes[which].push_back(shape[axis]);
    steps[which].push_back(strides[axis]);
  }
  GeneralReduceParams e;
  e.dtype = dtype;
  e.kept = merge_dense_axes(sizes[0], {steps[0]});
  e.reduced = merge_dense_axes(sizes[1], {steps[1]});
  if (e.reduced.rank < 0) e.kept.rank = -1;
  return e;
}

bool has_general_reduce(GeneralReduceKind kind, DType dtype) {
  return with_folded(kind, dtype, [](auto) { return cudaSuccess; }) == cudaSuccess;
}

cudaError_t fold(GeneralReduceKind kind, const GeneralReduceParams& e, const void* x, void* y,
                 cudaStream_t stream) {
  return with_folded(kind, e.dtype, [&]<typename T>(T) {
    return launch_groups(e, stream, fold_kernel<T, kWarp>, fold_kernel<T, kThreads>, kind, e,
                         static_cast<const T*>(x), static_cast<T*>(y));
  });
}

cudaError_t normalize(Normalization kind, const GeneralReduceParams& e, const void* x, void* y,
                      cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    return launch_groups(e, stream, normalize_kernel<T, kWarp>, normalize_kernel<T, kThreads>, kind,
                         e, static_cast<const T*>(x), static_cast<T*>(y));
  });
}

cudaError_t product_gradient(const GeneralReduceParams& e, const void* dy, const void* x, void* dx,
                             cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    return launch_groups(e, stream, product_kernel<T, kWarp>, product_kernel<T, kThreads>, e,
                         static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<T*>(dx));
  });
}

bool has_running_sum(DType dtype) {
  return is_32_or_16_bit_float(dtype) || dtype == DType::kInt32 || dtype == DType::kInt64;
}

cudaError_t running_sum(const ScanParams& e, const void* x, void* y, cudaStream_t stream) {
  const auto run = [&]<typename T>(T) {
    return over(e.outer * e.inner, stream, sum_kernel<T>, e, x, y);
  };
  if (e.dtype == DType::kInt32) return run(int32_t{});
  if (e.dtype == DType::kInt64) return run(int64_t{});
  return with_float(e.dtype, run);
}

cudaError_t running_product_grad(const ScanParams& e, const float* dy, const float* x, float* dx,
                                 cudaStream_t stream) {
  return over(e.outer * e.inner, stream, running_product_grad_kernel, e, dy, x, dx);
}

}  // namespace ofsdp::kernels::cuda
