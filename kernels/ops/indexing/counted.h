// What operators over a bounded axis (importer/passes/bounded_axes.h) have in common: attribute axis, and
// attribute factor f: the first f * count slices along it are there, the others are padding. Input
// 1 is the count, int64[1], known at run time.
//
// Ownership: values. Threads: any. Errors: kInput from infer.
#pragma once

#include <algorithm>

#include "kernels/cpu/lines.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

inline Lines counted_lines(const Shape& shape, const Attributes& attributes) {
  return lines_along(shape, attributes.i("axis", 0));
}

inline int64_t counted_rows(const Lines& lines, const Attributes& attributes, int64_t count) {
  return std::min(lines.n, attributes.i("factor", 1) * count);
}

inline Result<std::vector<TensorDesc>> infer_counted(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(
      normalize_axis(c.attributes.i("axis", 0), c.inputs[0].shape.rank()).status());
  if (c.inputs[1] != TensorDesc{DType::kInt64, {1}}) {
    return input_error("expected a count int64[1], found {}", c.inputs[1].text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

}  // namespace ofsdp::kernels::ops
