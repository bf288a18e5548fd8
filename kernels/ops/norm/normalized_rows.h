// The shape of LayerNormalization, RMSNormalization and their relatives: x is [rows, width], cut at
// attribute `axis`. Shared by the operators and their gradient. Values; any thread.
#pragma once

#include "kernels/core/norm_operands.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/norm_rows.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

int norm_axis(const Shape& x, const Attributes& attributes);
NormRows rows_of(const Shape& x, const Attributes& attributes, bool centred);
Shape stats_shape(const Shape& x, const Attributes& attributes);  // 1 from the axis on

// Returns whether `operand` (scale or bias) holds one row of x's normalised axes.
bool is_one_row(const Shape& operand, const Shape& x, int axis);

// float, double, BFloat16 or Half; inputs 3 to 6 are statistics, in float32.
template <typename T>
Acceptance accepts_norm(const Problem& p) {
  const DType dtype = dtype_of<T>();
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const bool statistic = i >= 3 && i < kNormAddend;
    if (!p.has_in(i) || p.in(i).dtype == (statistic ? DType::kFloat32 : dtype)) continue;
    return Acceptance::refuse(statistic ? "statistics that are not float32" : not_of_type<T>());
  }
  if (p.out(0).dtype != dtype) return Acceptance::refuse(not_of_type<T>());
  return accept_if(p.all_plain(), kNotPlain);
}

// The implementations of an operator, from its kernel in every float type.
template <auto create32, auto create_bfloat16, auto create_half, auto create64>
std::vector<Implementation> norm_kernels(const char* name) {
  return {{name, accepts_norm<float>, create32},
          {"bfloat16", accepts_norm<BFloat16>, create_bfloat16},
          {"float16", accepts_norm<Half>, create_half},
          in_float32<accepts_norm<float>, create32>(),
          {"float64", accepts_norm<double>, create64}};
}

}  // namespace ofsdp::kernels::ops
