// ReverseSequence, and TensorScatter, which writes into a cache: rows moved as lengths or positions in device memory say.
//
// Elements of any size; what is out of range is noted and counts as 0. Memory: 2b of each row that is moved, 16 bytes an access
// where rows allow.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// x, y: rows of `bytes` bytes, [steps, batch] or [batch, steps]; the first lengths[b] steps of sample b the other way round.
struct ReverseExtent {
  int64_t steps = 0, batch = 0, bytes = 0;
  bool time_first = true;
  const int64_t* lengths = nullptr;
  Fault fault = {};
};
cudaError_t reverse_sequence(const ReverseExtent& e, const void* x, void* y, cudaStream_t stream);

// update [outer, n, bytes] into cache [outer, size, bytes] from row first[o / per_batch] on (null: 0), round the end if circular.
struct CacheExtent {
  int64_t outer = 0, n = 0, size = 0, bytes = 0, per_batch = 1;
  bool circular = false;
  const int64_t* first = nullptr;
  Fault fault = {};
};
cudaError_t write_cache(const CacheExtent& e, const void* update, void* cache, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
