// Launchers that find, reorder or rank elements: NonZero and Compress, counted slices,
// ReverseSequence, caches, TopK.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// --- Searches (kernels/ops/indexing/counted.cpp). Output buffers have room for all elements.
//
// Stores the flat positions of nonzero elements in x (-0 counts as zero if `floats`), in order, and
// the count. x has n elements, `size` bytes each. If `fills`, unused entries repeat the last
// position (0 if none is found); else they stay as they are. Chunks of 2048 elements are counted,
// offset by one block, then written; x is read twice.
struct FoundParams {
  int64_t n = 0;
  size_t size = 1;
  bool floats = false, fills = true;
};
size_t found_scratch(const FoundParams& e);
cudaError_t found_positions(const FoundParams& e, const void* x, int64_t* positions, int64_t* count,
                            void* scratch, cudaStream_t stream);
// Splits positions [n], stored in y's first row, into an index per axis: y [rank, n]. `shape`: the
// searched tensor's `rank` axes, in host memory.
cudaError_t split_positions(int64_t n, const int64_t* shape, int rank, int64_t* y,
                            cudaStream_t stream);

// Scatter indices for counted slices. x and y have `numel` elements, [outer, n, inner]; the last
// axis of the index tensor holds `components` numbers, one for each indexed axis of the scattered
// tensor, with sizes `dims`. The first factor * count entries along n are x's, negative ones
// wrapped. Other entries become (dims[0], 0, ...), which lies outside.
struct ScatterIndexParams {
  int64_t numel = 0, n = 0, inner = 1, factor = 1;
  int components = 1;
  int64_t dims[kMaxAxes] = {};
};
cudaError_t scatter_indices(const ScatterIndexParams& e, const int64_t* x, const int64_t* count,
                            int64_t* y, cudaStream_t stream);

// Reports a fault if count * factor != expected.
cudaError_t require_count(const int64_t* count, int64_t factor, int64_t expected, Fault fault,
                          cudaStream_t stream);

// Groups equal slices x[:, i, :] of x [outer, n, inner]: ofsdp.FoundUnique, whose outputs
// kernels/ops/indexing/sorted.cpp describes. Two NaN are equal and come after all numbers. Each
// slice is compared with each other one, so this takes n^2 comparisons; no atomics, no sort.
struct UniqueParams {
  DType dtype = DType::kFloat32;
  int64_t outer = 1, n = 0, inner = 1;
  bool sorted = true;
};
bool supports_unique(DType dtype);
size_t unique_scratch(const UniqueParams& e);
cudaError_t find_unique(const UniqueParams& e, const void* x, int64_t* first, int64_t* inverse,
                        int64_t* counts, int64_t* count, void* scratch, cudaStream_t stream);

// --- Sequences: moves whole rows of any type, 16 bytes per access if possible. Lengths and
// positions are in device memory; invalid ones are reported and count as 0.
//
// Reverses the first lengths[b] steps of sample b. x, y: rows of `bytes` bytes, [steps, batch] if
// time_first, otherwise [batch, steps].
struct ReverseParams {
  int64_t steps = 0, batch = 0, bytes = 0;
  bool time_first = true;
  const int64_t* lengths = nullptr;
  Fault fault = {};
};
cudaError_t reverse_sequence(const ReverseParams& e, const void* x, void* y, cudaStream_t stream);

// Writes update [outer, n, bytes] into cache [outer, size, bytes], starting at row first[o /
// per_batch] (0 if null); wraps around if circular.
struct CacheParams {
  int64_t outer = 0, n = 0, size = 0, bytes = 0, per_batch = 1;
  bool circular = false;
  const int64_t* first = nullptr;
  Fault fault = {};
};
cudaError_t write_cache(const CacheParams& e, const void* update, void* cache, cudaStream_t stream);

// --- TopK, ArgMax, ArgMin: the k best elements along n.
//
// x [outer, n, inner]; y and indices [outer, k, inner], best first. Among equals the lower index
// comes first, or the higher if `last`. NaN is the largest number, or always best if nan_first.
// float32, float16, bfloat16, float64, int32, int64.
//
// For small k, a warp per line (a thread if inner is large) scans the line k times. For large k all
// lines are sorted at once, which takes about 100 bytes per element; not for 64-bit types.
struct TopParams {
  DType dtype = DType::kFloat32;
  int64_t outer = 1, n = 0, inner = 1, k = 1;
  bool largest = true, last = false, nan_first = false;
};
bool supports_top(DType dtype);
size_t top_scratch(const TopParams& e);  // call while planning: CUB asks the device
// y or indices may be null.
cudaError_t top(const TopParams& e, const void* x, void* y, int64_t* indices, void* scratch,
                cudaStream_t stream);

// One-hot: y [outer, n, inner] is 1 at indices [outer, inner], 0 elsewhere.
cudaError_t mark_index(const TopParams& e, const int64_t* indices, void* y, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
