// What accepts and create of several implementations ask of a problem's operands.
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/cpu/broadcast.h"

namespace ofsdp::kernels::cuda {

inline bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

inline bool is_index(DType dtype) { return dtype == DType::kInt32 || dtype == DType::kInt64; }

// An axis attribute, counted from the front.
inline int axis_of(const Attributes& attributes, const char* name, int64_t otherwise, int rank) {
  const int64_t axis = attributes.i(name, otherwise);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

// A tensor seen along one axis: [outer, n, inner].
struct Lines {
  int64_t outer = 1, n = 1, inner = 1;
};
inline Lines lines_along(const Shape& shape, int64_t given) {
  const int axis = static_cast<int>(given < 0 ? given + shape.rank() : given);
  return {shape.numel(0, axis), shape[axis], shape.numel(axis + 1, shape.rank())};
}

// The values of an integer input that is known while planning; empty where it is absent.
std::vector<int64_t> known_ints(const Problem& p, size_t input);

// The value of a scalar that is known while planning, or `otherwise` where it is absent.
double known_scalar(const Problem& p, size_t input, double otherwise);

}  // namespace ofsdp::kernels::cuda
