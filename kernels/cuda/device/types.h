// Types that all launchers of kernels/cuda share.
//
//   Every launcher takes device pointers and a stream, starts kernels there and returns what the
//   launch said. It allocates nothing, waits for nothing and reads nothing back, so a stream that
//   is being captured takes it; numbers that change from step to step are read from device memory.
//   Scratch comes from the caller, by the size function next to the launcher. Sums run in an order
//   that the shape alone gives: the same bits on every run and on every card. 16-bit floats are
//   storage: arithmetic is in float32, rounded once. cudaErrorNotSupported: this dtype or size has
//   no kernel here; nothing was started.
//
// Ownership: views. Threads: any, one a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/core/device_values.h"
#include "kernels/core/dtype.h"

namespace ofsdp::kernels::cuda {

inline constexpr int kMaxAxes = 8;

struct DeviceState;  // device_state.h; operators see the name alone

// For launchers whose data may be wrong: the first value out of range is noted in `record`, which
// may be null, under the name of `node`, if nothing has been noted there yet; the kernel goes on
// with 0 instead.
struct Fault {
  ofsdp_data_fault* record = nullptr;
  uint64_t node = 1;
};

// Parts of a workspace begin at such multiples.
inline size_t round_up(size_t bytes, size_t to = 256) { return (bytes + to - 1) / to * to; }

}  // namespace ofsdp::kernels::cuda

#define OFSDP_CUDA_TRY(expression)                                                  \
  do {                                                                              \
    if (const cudaError_t error = (expression); error != cudaSuccess) return error; \
  } while (false)

// A row of a switch that is a table.
#define OFSDP_CASE(value, ...) \
  case value:                  \
    return __VA_ARGS__
