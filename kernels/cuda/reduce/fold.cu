// One kernel for all rare folds, chosen by a switch that all threads take alike: sums are in
// double, so memory hides compute only for short folds. Plain reductions of floats have
// reduce.cu.
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/walk.cuh"
#include "kernels/cuda/reduce/fold.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kOfAWarp = 2048;  // folded elements; more of them have a block

// The type that elements are folded in: whole numbers wrap.
template <typename T>
using Folded = std::conditional_t<std::is_integral_v<T>, T, double>;

template <typename T>
__device__ inline Folded<T> value_of(T v) {
  return static_cast<Folded<T>>(to_float(v));
}
template <typename T>
__device__ inline T stored(Folded<T> v) {
  return Stored<T>::from(static_cast<Compute<T>>(v));
}

template <typename V>
struct Ends {
  using L = std::numeric_limits<V>;
  static constexpr V kMin = std::is_integral_v<V> ? L::lowest() : -L::infinity();
  static constexpr V kMax = std::is_integral_v<V> ? L::max() : L::infinity();
};

struct Joined {
  FoldKind kind;
  template <typename V>
  __device__ V operator()(V a, V b) const {
    switch (kind) {
      OFSDP_CASE(FoldKind::kProduct, product_of(a, b));
      OFSDP_CASE(FoldKind::kMax, a > b || a != a ? a : b);
      OFSDP_CASE(FoldKind::kMin, a < b || a != a ? a : b);
      default:
        return sum_of(a, b);
    }
  }
  template <typename V>
  __device__ V start() const {
    switch (kind) {
      OFSDP_CASE(FoldKind::kProduct, V(1));
      OFSDP_CASE(FoldKind::kMax, Ends<V>::kMin);
      OFSDP_CASE(FoldKind::kMin, Ends<V>::kMax);
      default:
        return V(0);
    }
  }
  template <typename V>
  __device__ V term(V v) const {
    if (kind == FoldKind::kSumAbs) return v < V(0) ? product_of(v, V(-1)) : v;
    return kind == FoldKind::kSumSquares || kind == FoldKind::kNorm ? product_of(v, v) : v;
  }
};

// G threads a result; all of them get the fold of term(element).
template <typename T, int G>
struct Group {
  using V = Folded<T>;
  const FoldExtent& e;
  const T* x;  // of this result
  bool there;
  V* spare;

  template <typename F>
  __device__ V run(const Joined& join, const F& term) const {
    V mine = join.start<V>();
    each([&](int64_t at) { mine = join(mine, term(value_of(x[at]))); });
    return group_fold<G>(mine, join, spare);
  }
  template <typename F>
  __device__ void each(const F& f) const {
    for (int64_t i = there ? threadIdx.x % G : e.reduced.numel; i < e.reduced.numel; i += G) {
      int64_t at[1];
      places<1>(e.reduced, i, at);
      f(at[0]);
    }
  }
};

template <typename T, int G>
__device__ inline Group<T, G> group_of(const FoldExtent& e, const T* x, int64_t result,
                                       Folded<T>* spare) {
  const bool there = result < e.kept.numel;
  int64_t at[1];
  places<1>(e.kept, there ? result : 0, at);
  return {e, x + at[0], there, spare};
}

template <typename T, int G>
OFSDP_CUDA_KERNEL fold_kernel(FoldKind kind, FoldExtent e, const T* x, T* y) {
  using V = Folded<T>;
  __shared__ V spare[kThreads / kWarp];
  const int64_t result = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / G;
  const Group<T, G> group = group_of<T, G>(e, x, result, spare);
  const Joined join{kind};
  V v{};
  if constexpr (!std::is_integral_v<T>) {
    if (kind == FoldKind::kLogSumExp) {
      const double most = group.run(Joined{FoldKind::kMax}, [](V a) { return a; });
      const double shift = fabs(most) > 1.7e308 ? 0.0 : most;
      v = log(group.run(join, [&](V a) { return exp(a - shift); })) + shift;
    } else {
      v = group.run(join, [&](V a) { return join.term(a); });
    }
    if (kind == FoldKind::kMean) v /= static_cast<double>(e.reduced.numel);
    if (kind == FoldKind::kNorm) v = sqrt(v);
    if (kind == FoldKind::kLogSum) v = log(v);
  } else {
    v = group.run(join, [&](V a) { return join.term(a); });
  }
  if (group.there && threadIdx.x % G == 0) y[result] = stored<T>(v);
}

template <typename T, int G>
OFSDP_CUDA_KERNEL normalize_kernel(Normalization kind, FoldExtent e, const T* x, T* y) {
  __shared__ double spare[kThreads / kWarp];
  const int64_t result = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / G;
  const Group<T, G> group = group_of<T, G>(e, x, result, spare);
  T* const to = y + (group.x - x);
  const auto sum = [&](FoldKind fold, const auto& term) { return group.run(Joined{fold}, term); };
  double centre = 0, divisor = 0;
  if (kind == Normalization::kMeanVariance) {
    const auto count = static_cast<double>(e.reduced.numel);
    centre = sum(FoldKind::kSum, [](double v) { return v; }) / count;
    const double square =
        sum(FoldKind::kSum, [&](double v) { return (v - centre) * (v - centre); }) / count;
    divisor = sqrt(square) + 1e-9;
  } else if (kind == Normalization::kAbsolute) {
    divisor = sum(FoldKind::kSum, [](double v) { return fabs(v); });
  } else {
    divisor = sqrt(sum(FoldKind::kSum, [](double v) { return v * v; }));
  }
  group.each([&](int64_t at) {
    const double v = value_of(group.x[at]);
    to[at] = stored<T>(divisor == 0 ? 0.0 : (v - centre) / divisor);
  });
}

// The product of all that is not 0, over the element itself; only 0 has a slope with another 0,
// and only alone.
template <typename T, int G>
OFSDP_CUDA_KERNEL product_kernel(FoldExtent e, const T* dy, const T* x, T* dx) {
  __shared__ double spare[kThreads / kWarp];
  const int64_t result = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / G;
  const Group<T, G> group = group_of<T, G>(e, x, result, spare);
  T* const to = dx + (group.x - x);
  const double zeros =
      group.run(Joined{FoldKind::kSum}, [](double v) { return v == 0 ? 1.0 : 0.0; });
  const double product =
      group.run(Joined{FoldKind::kProduct}, [](double v) { return v == 0 ? 1.0 : v; });
  const double d = group.there ? static_cast<double>(to_float(dy[result])) * product : 0;
  group.each([&](int64_t at) {
    const double v = value_of(group.x[at]);
    to[at] = stored<T>(zeros == 0 ? d / v : zeros == 1 && v == 0 ? d : 0.0);
  });
}

template <typename F>
cudaError_t with_folded(FoldKind kind, DType dtype, const F& f) {
  if (dtype == DType::kFloat64) return f(double{});
  const bool function = kind == FoldKind::kNorm || kind == FoldKind::kLogSum ||
                        kind == FoldKind::kLogSumExp;  // rounded once, after it
  const bool whole = !function && kind != FoldKind::kMean;
  if (dtype == DType::kInt32 && whole) return f(int32_t{});
  if (dtype == DType::kInt64 && whole) return f(int64_t{});
  return function ? with_float(dtype, f) : cudaErrorNotSupported;
}

template <typename... P, typename... A>
cudaError_t by_group(const FoldExtent& e, cudaStream_t stream, void (*warp)(P...),
                     void (*block)(P...), A... arguments) {
  const bool many = e.reduced.numel > kOfAWarp;
  return launch_blocks(stream, many ? e.kept.numel : blocks_for(e.kept.numel, kThreads / kWarp),
                       kThreads, many ? block : warp, arguments...);
}

template <typename T>
OFSDP_CUDA_KERNEL sum_kernel(ScanExtent e, const T* x, T* y) {
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

}  // namespace

FoldExtent fold_extent(DType dtype, const std::vector<int64_t>& shape,
                       const std::vector<bool>& reduced) {
  const std::vector<int64_t> strides = dense_strides(shape);
  std::vector<int64_t> sizes[2], steps[2];
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const int which = reduced[axis] ? 1 : 0;
    sizes[which].push_back(shape[axis]);
    steps[which].push_back(strides[axis]);
  }
  FoldExtent e;
  e.dtype = dtype;
  e.kept = collapsed(sizes[0], {steps[0]});
  e.reduced = collapsed(sizes[1], {steps[1]});
  if (e.reduced.rank < 0) e.kept.rank = -1;
  return e;
}

bool has_fold(FoldKind kind, DType dtype) {
  return with_folded(kind, dtype, [](auto) { return cudaSuccess; }) == cudaSuccess;
}

cudaError_t fold(FoldKind kind, const FoldExtent& e, const void* x, void* y, cudaStream_t stream) {
  return with_folded(kind, e.dtype, [&]<typename T>(T) {
    return by_group(e, stream, fold_kernel<T, kWarp>, fold_kernel<T, kThreads>, kind, e,
                    static_cast<const T*>(x), static_cast<T*>(y));
  });
}

cudaError_t normalize(Normalization kind, const FoldExtent& e, const void* x, void* y,
                      cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    return by_group(e, stream, normalize_kernel<T, kWarp>, normalize_kernel<T, kThreads>, kind, e,
                    static_cast<const T*>(x), static_cast<T*>(y));
  });
}

cudaError_t product_gradient(const FoldExtent& e, const void* dy, const void* x, void* dx,
                             cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    return by_group(e, stream, product_kernel<T, kWarp>, product_kernel<T, kThreads>, e,
                    static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<T*>(dx));
  });
}

bool has_running_sum(DType dtype) {
  return is_32_or_16_bit_float(dtype) || dtype == DType::kInt32 || dtype == DType::kInt64;
}

cudaError_t running_sum(const ScanExtent& e, const void* x, void* y, cudaStream_t stream) {
  const auto run = [&]<typename T>(T) {
    return over(e.outer * e.inner, stream, sum_kernel<T>, e, x, y);
  };
  if (e.dtype == DType::kInt32) return run(int32_t{});
  if (e.dtype == DType::kInt64) return run(int64_t{});
  return with_float(e.dtype, run);
}

}  // namespace ofsdp::kernels::cuda
