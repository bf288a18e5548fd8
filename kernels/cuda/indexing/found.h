// Kernels that depend on which elements of a tensor are not 0, in buffers that are large enough for
// all of them: kernels/ops/indexing/counted.cpp; and Compress with a condition that is known while
// planning.
//
// Positions in their order: counts of chunks of 2048 elements, their sums in front of each chunk by
// one block, then the positions. Memory: x twice, each position written once, and once more for
// every axis.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// The flat positions of the elements of x, of `size` bytes, that are not 0 (floats: -0 is 0), and
// how many there are. With `fills` the rest of positions [n] is the last one again, or 0.
struct FoundExtent {
  int64_t n = 0;
  size_t size = 1;
  bool floats = false, fills = true;
};
size_t found_scratch(const FoundExtent& e);
cudaError_t found_positions(const FoundExtent& e, const void* x, int64_t* positions, int64_t* count,
                            void* scratch, cudaStream_t stream);
// positions [n], which y's first row is, as an index of every axis: y [rank, n].
cudaError_t split_positions(int64_t n, const int64_t* shape, int rank, int64_t* y,
                            cudaStream_t stream);

// y = x where index i of [outer, n, inner] is one of the first factor * count of n, counted from
// the front; else (dims[0], 0, ...).
struct ScatterIndexExtent {
  int64_t numel = 0, n = 0, inner = 1, factor = 1;
  int components = 1;
  int64_t dims[kMaxAxes] = {};
};
cudaError_t scatter_indices(const ScatterIndexExtent& e, const int64_t* x, const int64_t* count,
                            int64_t* y, cudaStream_t stream);

// Notes a count * factor that is not the one expected.
cudaError_t require_count(const int64_t* count, int64_t factor, int64_t expected, Fault fault,
                          cudaStream_t stream);

// ReverseSequence, and TensorScatter, which writes into a cache: rows moved as lengths or positions
// in device memory say.
//
// Elements of any size; what is out of range is noted and counts as 0. Memory: 2b of each row that
// is moved, 16 bytes an access where rows allow.
// x, y: rows of `bytes` bytes, [steps, batch] or [batch, steps]; the first lengths[b] steps of
// sample b the other way round.
struct ReverseExtent {
  int64_t steps = 0, batch = 0, bytes = 0;
  bool time_first = true;
  const int64_t* lengths = nullptr;
  Fault fault = {};
};
cudaError_t reverse_sequence(const ReverseExtent& e, const void* x, void* y, cudaStream_t stream);

// update [outer, n, bytes] into cache [outer, size, bytes] from row first[o / per_batch] on (null:
// 0), round the end if circular.
struct CacheExtent {
  int64_t outer = 0, n = 0, size = 0, bytes = 0, per_batch = 1;
  bool circular = false;
  const int64_t* first = nullptr;
  Fault fault = {};
};
cudaError_t write_cache(const CacheExtent& e, const void* update, void* cache, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
