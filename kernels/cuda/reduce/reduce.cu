// If the reduced axis is last, a warp or block reduces each row; else adjacent threads reduce
// adjacent columns. Both load whole sectors. Long passes are split into chunks to fill the GPU; the
// split depends on the shape only.
#include "kernels/cuda/norm/rows.cuh"
#include "kernels/cuda/reduce/reduce.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kLongRow = 1024;       // longer rows take a block, others a warp
constexpr int64_t kRowChunk = 4096;      // elements per chunk, at least
constexpr int64_t kColumnChunk = 64;     // rows per chunk, at least
constexpr int64_t kTargetBlocks = 1056;  // blocks: eight on each of 132 SMs
constexpr int kRows = 8;                 // threads per column

__host__ __device__ inline float identity(ReduceKind kind) {
  return kind == ReduceKind::kProduct ? 1.0f
         : kind == ReduceKind::kMax   ? -INFINITY
         : kind == ReduceKind::kMin   ? INFINITY
                                      : 0.0f;
}

__host__ __device__ inline float combine(ReduceKind kind, float a, float b) {
  switch (kind) {
    OFSDP_CASE(ReduceKind::kProduct, a * b);
    OFSDP_CASE(ReduceKind::kMax, b > a || b != b ? b : a);
    OFSDP_CASE(ReduceKind::kMin, b < a || b != b ? b : a);
    default:
      return a + b;
  }
}

__host__ __device__ inline float term(ReduceKind kind, float v) {
  if (kind == ReduceKind::kSumAbs) return fabsf(v);
  return kind == ReduceKind::kSumSquares ? v * v : v;
}

// The kind that combines the partial results of the first pass.
ReduceKind later(ReduceKind kind) {
  return kind == ReduceKind::kSumAbs || kind == ReduceKind::kSumSquares ? ReduceKind::kSum : kind;
}

template <bool sum>
struct Join {
  ReduceKind kind;
  __device__ float operator()(float a, float b) const { return sum ? a + b : combine(kind, a, b); }
  __device__ float value(float v) const { return sum ? v : term(kind, v); }
};

// G threads reduce a chunk of a row.
template <typename In, typename Out, bool sum, int G>
OFSDP_CUDA_KERNEL row_kernel(ReducePass p, Join<sum> join, float scale, const In* x, Out* y) {
  __shared__ float spare[kThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t item = int64_t{blockIdx.x} * (kThreads / G) + threadIdx.x / G;
  const bool in_range = item < p.outer * p.chunks;
  const int64_t row = in_range ? item / p.chunks : 0, chunk = in_range ? item % p.chunks : 0;
  const int64_t begin = p.n * chunk / p.chunks,
                end = in_range ? p.n * (chunk + 1) / p.chunks : begin;
  const In* from = x + row * p.n + begin;
  float all = identity(join.kind);
  for_row_packs(from, end - begin, true, lane, G, [&]<int N>(int64_t i) {
    float v[N];
    load<N>(from + i, v);
    unrolled<N>([&](int k) { all = join(all, join.value(v[k])); });
  });
  all = group_reduce<G>(all, join, spare);
  if (in_range && lane == 0) y[item] = Stored<Out>::from(all * scale);
}

// V columns per thread, kRows threads per column, combined in shared memory.
template <typename In, typename Out, bool sum, int V>
__global__ void __launch_bounds__(kWarp* kRows)
    column_kernel(ReducePass p, Join<sum> join, float scale, int64_t blocks, const In* x, Out* y) {
  __shared__ float others[kRows][kWarp * V];
  const int64_t item = blockIdx.x / blocks;
  const int64_t column = (blockIdx.x % blocks * kWarp + threadIdx.x) * V;
  const int64_t outer = item / p.chunks, chunk = item % p.chunks;
  const int64_t end = p.n * (chunk + 1) / p.chunks;
  float all[V];
  unrolled<V>([&](int k) { all[k] = identity(join.kind); });
  if (column < p.inner) {
#pragma unroll 4
    for (int64_t row = p.n * chunk / p.chunks + threadIdx.y; row < end; row += kRows) {
      float v[V];
      load<V>(x + (outer * p.n + row) * p.inner + column, v);
      unrolled<V>([&](int k) { all[k] = join(all[k], join.value(v[k])); });
    }
  }
  unrolled<V>([&](int k) { others[threadIdx.y][threadIdx.x * V + k] = all[k]; });
  __syncthreads();
  if (threadIdx.y != 0 || column >= p.inner) return;
  for (int r = 1; r < kRows; ++r) {
    unrolled<V>([&](int k) { all[k] = join(all[k], others[r][threadIdx.x * V + k]); });
  }
  unrolled<V>([&](int k) { all[k] *= scale; });
  store<V>(y + item * p.inner + column, all);
}

template <typename In, typename Out, bool sum>
cudaError_t pass(const ReducePass& p, ReduceKind kind, float scale, const In* x, Out* y,
                 cudaStream_t stream) {
  const Join<sum> join{kind};
  const int64_t items = p.outer * p.chunks;
  if (p.inner == 1 && p.n / p.chunks > kLongRow) {
    return launch_blocks(stream, items, kThreads, row_kernel<In, Out, sum, kThreads>, p, join,
                         scale, x, y);
  }
  if (p.inner == 1) {
    return launch_blocks(stream, blocks_for(items, kThreads / kWarp), kThreads,
                         row_kernel<In, Out, sum, kWarp>, p, join, scale, x, y);
  }
  constexpr int V = 4;
  const bool packs = p.inner % V == 0 && aligned16(0, 1, x, y);
  const int64_t blocks = blocks_for(p.inner, kWarp * (packs ? V : 1));
  if (items * blocks == 0) return cudaSuccess;
  if (items * blocks > kMaxBlocks) return cudaErrorNotSupported;
  return launch(stream, dim3(static_cast<unsigned>(items * blocks)), dim3(kWarp, kRows),
                packs ? column_kernel<In, Out, sum, V> : column_kernel<In, Out, sum, 1>, p, join,
                scale, blocks, x, y);
}

template <typename In, typename Out>
cudaError_t pass_of(const ReducePass& p, ReduceKind kind, float scale, const void* x, void* y,
                    cudaStream_t stream) {
  const In* from = static_cast<const In*>(x);
  Out* to = static_cast<Out*>(y);
  return kind == ReduceKind::kSum ? pass<In, Out, true>(p, kind, scale, from, to, stream)
                                  : pass<In, Out, false>(p, kind, scale, from, to, stream);
}

template <typename T, typename Y>
cudaError_t reduce_as(const std::vector<ReducePass>& passes, const ReduceCall& c,
                      cudaStream_t stream) {
  float* spare[2] = {static_cast<float*>(c.scratch), nullptr};
  spare[1] = spare[0] + reduce_scratch(passes) / sizeof(float) / 2;
  const void* from = c.x;
  for (size_t i = 0; i < passes.size(); ++i) {
    const ReducePass& p = passes[i];
    const ReduceKind kind = i == 0 ? c.kind : later(c.kind);
    if (i + 1 == passes.size()) {
      return i == 0 ? pass_of<T, Y>(p, kind, c.scale, from, c.y, stream)
                    : pass_of<float, Y>(p, kind, c.scale, from, c.y, stream);
    }
    float* to = spare[i % 2];
    OFSDP_CUDA_TRY(i == 0 ? (pass_of<T, float>(p, kind, 1.0f, from, to, stream))
                          : (pass_of<float, float>(p, kind, 1.0f, from, to, stream)));
    from = to;
  }
  return cudaSuccess;
}

int64_t chunks_of(const ReducePass& p) {
  const bool rows = p.inner == 1;
  const int64_t blocks =
      std::max<int64_t>(p.outer * (rows ? 1 : blocks_for(p.inner, kWarp * 4)), 1);
  const int64_t max_chunks = p.n / (rows ? kRowChunk : kColumnChunk);
  return std::clamp<int64_t>(kTargetBlocks / blocks, 1, std::max<int64_t>(max_chunks, 1));
}

}  // namespace

std::vector<ReducePass> plan_reduce(const std::vector<int64_t>& shape,
                                    const std::vector<bool>& reduced) {
  struct Group {
    int64_t size;
    bool reduced;
  };
  std::vector<Group> groups;
  for (size_t a = 0; a < shape.size(); ++a) {
    if (shape[a] == 1) continue;
    if (!groups.empty() && groups.back().reduced == reduced[a]) {
      groups.back().size *= shape[a];
    } else {
      groups.push_back({shape[a], reduced[a]});
    }
  }
  std::vector<ReducePass> passes;
  int64_t inner = 1;
  for (size_t g = groups.size(); g-- > 0;) {
    if (!groups[g].reduced) {
      inner *= groups[g].size;
      continue;
    }
    ReducePass p{1, groups[g].size, inner, 1};
    for (size_t before = 0; before < g; ++before) p.outer *= groups[before].size;
    p.chunks = chunks_of(p);
    passes.push_back(p);
    if (p.chunks > 1) passes.push_back({p.outer, p.chunks, p.inner, 1});
  }
  if (passes.empty()) passes.push_back({inner, 1, 1, 1});  // nothing to reduce: |x|, x^2 or x
  return passes;
}

size_t reduce_scratch(const std::vector<ReducePass>& passes) {
  int64_t elements = 0;
  for (size_t i = 0; i + 1 < passes.size(); ++i) {
    elements = std::max(elements, passes[i].outer * passes[i].chunks * passes[i].inner);
  }
  return 2 * round_up(static_cast<size_t>(elements) * sizeof(float));
}

cudaError_t reduce(const std::vector<ReducePass>& passes, const ReduceCall& c,
                   cudaStream_t stream) {
  if (c.out_dtype != c.dtype && c.out_dtype != DType::kFloat32) return cudaErrorNotSupported;
  return with_float(c.dtype, [&]<typename T>(T) {
    return c.out_dtype == c.dtype ? reduce_as<T, T>(passes, c, stream)
                                  : reduce_as<T, float>(passes, c, stream);
  });
}

}  // namespace ofsdp::kernels::cuda
