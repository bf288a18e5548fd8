// The groups of equal slices of x along an axis, for Unique: of values known while planning and of
// those that only the run computes. Two NaN are equal here and behind all numbers, as in NumPy.
//
// Lines say what a slice is: x[outer, n, inner], slice i is x[:, i, :].
//
// Ownership: none; the caller has the room. Threads: any. Errors: none. Allocates nothing.
#pragma once

#include "kernels/core/attributes.h"
#include "kernels/core/tensor.h"
#include "kernels/cpu/lines.h"

namespace ofsdp::kernels::ops {

// Room for n numbers each.
struct UniqueGroups {
  int64_t* first;    // per group the slice that appears first
  int64_t* inverse;  // per slice its group
  int64_t* counts;   // per group its slices
};

// Slices along attribute axis; without it the elements, laid flat.
Lines unique_lines(const Shape& shape, const Attributes& attributes);

// Groups in rising order, or in that of their first slices. `order`: room for n numbers, scratch.
// Gives the number of groups.
int64_t find_groups(DType dtype, const void* x, const Lines& lines, bool sorted, int64_t* order,
                    const UniqueGroups& groups);

}  // namespace ofsdp::kernels::ops
