// Strided copies: elements widen to up to 16 bytes if runs allow. A copy that transposes two axes
// goes through tiles in shared memory, so that both sides access whole sectors. Trilu, OneHot and
// KeepCounted take one pass.
#include <cstring>
#include <numeric>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/strided_index.h"
#include "kernels/cuda/shape/movement.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kTile = 32, kTileRows = 8;

// A thread per element.
template <typename T>
OFSDP_CUDA_KERNEL copy_kernel(StridedIndex walk, const T* src, T* dst) {
  OFSDP_CUDA_ITEM(i, walk.numel);
  int64_t at[2];
  places<2>(walk, i, at);
  dst[at[1]] = src[at[0]];
}

// A tiled copy: src is dense along x, dst along y; `batch` iterates over the other axes.
struct Tiles {
  StridedIndex batch;
  int64_t x, y, src_y, dst_x;  // sizes; src's stride along y, dst's along x
  int64_t tiles_x, tiles_y;
};

// A block of 32 x 8 threads copies a 32 x 32 tile: reads rows along x, writes rows along y. The
// tile's odd pitch avoids bank conflicts.
template <typename T>
__global__ void __launch_bounds__(kTile* kTileRows) tile_kernel(Tiles t, const T* src, T* dst) {
  __shared__ T tile[kTile][kTile + 1];
  const int64_t tiles = t.tiles_x * t.tiles_y;
  int64_t at[2];
  places<2>(t.batch, blockIdx.x / tiles, at);
  const int64_t x0 = blockIdx.x % tiles % t.tiles_x * kTile,
                y0 = blockIdx.x % tiles / t.tiles_x * kTile;
  for (int r = static_cast<int>(threadIdx.y); r < kTile; r += kTileRows) {
    const int64_t x = x0 + threadIdx.x, y = y0 + r;
    if (x < t.x && y < t.y) tile[r][threadIdx.x] = src[at[0] + y * t.src_y + x];
  }
  __syncthreads();
  for (int r = static_cast<int>(threadIdx.y); r < kTile; r += kTileRows) {
    const int64_t x = x0 + r, y = y0 + threadIdx.x;
    if (x < t.x && y < t.y) dst[at[1] + x * t.dst_x + y] = tile[threadIdx.x][r];
  }
}

// A thread per element.
template <typename T>
OFSDP_CUDA_KERNEL fill_kernel(T value, T* dst, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) dst[i] = value;
}

Tiles tiles_of(const CopyPlan& p) {
  Tiles t{};
  const int last = p.walk.rank - 1;
  t.batch.numel = 1;
  for (int a = 0; a < last; ++a) {
    if (a == p.tile_axis) continue;
    t.batch.shape[t.batch.rank] = p.walk.shape[a];
    for (int k = 0; k < 2; ++k) t.batch.strides[k][t.batch.rank] = p.walk.strides[k][a];
    t.batch.numel *= p.walk.shape[a];
    ++t.batch.rank;
  }
  t.x = p.walk.shape[p.tile_axis];
  t.y = p.walk.shape[last];
  t.src_y = p.walk.strides[0][last];
  t.dst_x = p.walk.strides[1][p.tile_axis];
  t.tiles_x = blocks_for(t.x, kTile);
  t.tiles_y = blocks_for(t.y, kTile);
  return t;
}

template <typename T>
cudaError_t copy_as(const CopyPlan& p, const void* src, void* dst, cudaStream_t stream) {
  if (p.tile_axis < 0) return over(p.walk.numel, stream, copy_kernel<T>, p.walk, src, dst);
  const Tiles t = tiles_of(p);
  const int64_t blocks = t.batch.numel * t.tiles_x * t.tiles_y;
  if (blocks > kMaxBlocks) return cudaErrorNotSupported;
  return launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(kTile, kTileRows), tile_kernel<T>,
                t, static_cast<const T*>(src), static_cast<T*>(dst));
}

template <typename T>
cudaError_t fill_as(const void* value, void* dst, int64_t n, cudaStream_t stream) {
  T v;
  std::memcpy(&v, value, sizeof(T));
  return over(n, stream, fill_kernel<T>, v, dst, n);
}

// Doubles the element size while runs, strides and addresses allow.
void widen(CopyPlan& p, const void* src, const void* dst) {
  StridedIndex& w = p.walk;
  const int last = w.rank - 1;
  while (p.size < 16 && last >= 0 && w.strides[0][last] == 1 && w.strides[1][last] == 1) {
    bool even = w.shape[last] % 2 == 0 && reinterpret_cast<uintptr_t>(src) % (2 * p.size) == 0 &&
                reinterpret_cast<uintptr_t>(dst) % (2 * p.size) == 0;
    for (int a = 0; a < last; ++a)
      even = even && w.strides[0][a] % 2 == 0 && w.strides[1][a] % 2 == 0;
    if (!even) return;
    w.shape[last] /= 2;
    w.numel /= 2;
    for (int a = 0; a < last; ++a) {
      w.strides[0][a] /= 2;
      w.strides[1][a] /= 2;
    }
    p.size *= 2;
  }
}

// A thread copies or clears V row elements.
template <typename T, int V>
OFSDP_CUDA_KERNEL triangle_kernel(TriangleParams e, const T* x, T* y) {
  const int64_t packs = e.columns / V;
  OFSDP_CUDA_ITEM(i, e.matrices * e.rows * packs);
  const int64_t row = i / packs, first = (i - row * packs) * V, edge = row % e.rows + e.k;
  const bool some = e.upper ? first + V > edge : first <= edge;
  Pack<T, V> pack{};
  if (some) pack = reinterpret_cast<const Pack<T, V>*>(x)[i];
  unrolled<V>([&](int v) {
    if (e.upper ? first + v < edge : first + v > edge) pack.v[v] = T{};
  });
  reinterpret_cast<Pack<T, V>*>(y)[i] = pack;
}

// A thread per y element.
template <typename Index, typename T>
OFSDP_CUDA_KERNEL one_hot_kernel(OneHotParams e, const Index* indices, const T* values, T* y) {
  OFSDP_CUDA_ITEM(i, e.outer * e.depth * e.inner);
  const int64_t rest = i / e.inner, j = i - rest * e.inner, o = rest / e.depth,
                k = rest - o * e.depth;
  const auto index = static_cast<int64_t>(indices[o * e.inner + j]);
  y[i] = values[k == index || k == index + e.depth ? 1 : 0];
}

// A thread per y element.
template <typename T>
OFSDP_CUDA_KERNEL keep_kernel(int64_t n, int64_t inner, int64_t all, int64_t factor,
                              const int64_t* count, const T* x, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < all) y[i] = i / inner % n < factor * *count ? x[i] : T{};
}

// A thread per y element; the header of this rank's part holds the row count.
OFSDP_CUDA_KERNEL join_kernel(JoinParams e, const float* x, float* y) {
  OFSDP_CUDA_ITEM(i, e.ranks * e.part);
  const int64_t at = i - e.rank * e.part, row = at - e.header;
  float value = 0;
  if (at == 0) value = static_cast<float>(e.rows);
  if (row >= 0 && row < e.rows * e.width) value = x[row];
  y[i] = value;
}

}  // namespace

CopyPlan plan_copy(size_t size, const std::vector<int64_t>& shape, std::vector<int64_t> src_strides,
                   std::vector<int64_t> dst_strides, const void* src, const void* dst) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return dst_strides[a] > dst_strides[b]; });
  std::vector<int64_t> sorted, from, to;
  for (size_t a : order) {
    sorted.push_back(shape[a]);
    from.push_back(src_strides[a]);
    to.push_back(dst_strides[a]);
  }
  CopyPlan p{size, merge_dense_axes(sorted, {from, to}), -1};
  widen(p, src, dst);
  const int last = p.walk.rank - 1;
  if (last < 1 || p.walk.strides[1][last] != 1 || p.walk.strides[0][last] == 1 ||
      p.walk.strides[0][last] == 0) {
    return p;
  }
  for (int a = 0; a < last; ++a) {
    if (p.walk.strides[0][a] == 1 && p.walk.shape[a] >= 8 && p.walk.shape[last] >= 8)
      p.tile_axis = a;
  }
  return p;
}

cudaError_t strided_copy(size_t size, const std::vector<int64_t>& shape,
                         const std::vector<int64_t>& src_strides,
                         const std::vector<int64_t>& dst_strides, const void* src, void* dst,
                         cudaStream_t stream) {
  const CopyPlan p = plan_copy(size, shape, src_strides, dst_strides, src, dst);
  if (p.walk.rank < 0) return cudaErrorNotSupported;
  if (p.walk.numel == 0) return cudaSuccess;
  return with_bits(p.size, [&]<typename T>(T) { return copy_as<T>(p, src, dst, stream); });
}

cudaError_t fill(size_t size, const void* value, void* dst, int64_t numel, cudaStream_t stream) {
  return with_bits(size, [&]<typename T>(T) { return fill_as<T>(value, dst, numel, stream); });
}

cudaError_t triangle(const TriangleParams& e, size_t size, const void* x, void* y,
                     cudaStream_t stream) {
  return with_bits(size, [&]<typename T>(T) {
    constexpr int V = kPack<T>;
    return launch_over_packs<V>(aligned16(e.columns, size, x, y), e.matrices * e.rows * e.columns,
                                stream, triangle_kernel<T, V>, triangle_kernel<T, 1>, e, x, y);
  });
}

bool has_one_hot(DType index_dtype) {
  return index_dtype == DType::kInt64 || index_dtype == DType::kInt32 ||
         index_dtype == DType::kFloat32;
}

cudaError_t one_hot(const OneHotParams& e, size_t size, const void* indices, const void* values,
                    void* y, cudaStream_t stream) {
  const auto run = [&]<typename Index>(Index) {
    return with_bits(size, [&]<typename T>(T) {
      return over(e.outer * e.depth * e.inner, stream, one_hot_kernel<Index, T>, e, indices, values,
                  y);
    });
  };
  if (e.index_dtype == DType::kInt32) return run(int32_t{});
  return e.index_dtype == DType::kInt64 ? run(int64_t{}) : run(float{});
}

cudaError_t keep_counted(int64_t outer, int64_t n, int64_t inner, int64_t factor,
                         const int64_t* count, size_t size, const void* x, void* y,
                         cudaStream_t stream) {
  const int64_t all = outer * n * inner;
  return with_bits(size, [&]<typename T>(T) {
    return over(all, stream, keep_kernel<T>, n, inner, all, factor, count, x, y);
  });
}

cudaError_t join_rows(const JoinParams& e, const float* x, float* y, cudaStream_t stream) {
  return over(e.ranks * e.part, stream, join_kernel, e, x, y);
}

}  // namespace ofsdp::kernels::cuda
