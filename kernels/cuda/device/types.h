// Types shared by all launchers in kernels/cuda, and the rules that launchers keep:
//
//   - A launcher takes device pointers and a stream, starts kernels there and returns the launch
//     error. It neither allocates nor synchronizes nor reads back, so streams can be captured.
//   - Values that change from step to step are read from device memory.
//   - The caller provides scratch, sized by the function next to the launcher.
//   - The order of a sum depends only on shapes: same bits on every run and every GPU.
//   - 16-bit floats are storage only: arithmetic is float32, rounded once.
//   - cudaErrorNotSupported: no kernel exists for this dtype or size; nothing was started.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/core/device_values.h"
#include "kernels/core/dtype.h"

namespace ofsdp::kernels::cuda {

inline constexpr int kMaxAxes = 8;

struct DeviceState;  // implementations.h

// Reports invalid data. The first value out of range is stored in `record` (may be null) together
// with `node`, unless `record` holds an earlier one. The kernel continues with 0 instead.
struct Fault {
  ofsdp_data_fault* record = nullptr;
  uint64_t node = 1;
};

// Offsets in a workspace are multiples of 256 bytes.
inline size_t round_up(size_t bytes, size_t to = 256) { return (bytes + to - 1) / to * to; }

// The gathered rows from ofsdp.JoinRows, laid out as kernels/core/planned_operands.h says: a part
// per rank, each a header (first element: the row count) and at most `most` rows, `width` elements
// each.
struct GatheredRows {
  const float* data = nullptr;  // device memory
  int64_t ranks = 1;
  int64_t part = 0;    // elements between the starts of two parts
  int64_t header = 0;  // elements before the rows; 0: no header, each rank has `most` rows
  int64_t most = 0, width = 0;
};

}  // namespace ofsdp::kernels::cuda

#define OFSDP_CUDA_TRY(expression)                                                  \
  do {                                                                              \
    if (const cudaError_t error = (expression); error != cudaSuccess) return error; \
  } while (false)

// A case in a switch that maps values to results.
#define OFSDP_CASE(value, ...) \
  case value:                  \
    return __VA_ARGS__
