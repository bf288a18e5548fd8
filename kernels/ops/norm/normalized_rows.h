// What LayerNormalization, RMSNormalization and their relatives share around kernels/cpu/
// norm_rows.h: x is [rows, width] cut at attribute `axis`; scale and bias broadcast to x, and where
// they are not just one row of `width` they are stretched into the workspace first.
//
// Ownership: values. Threads: see Kernel. Errors: kInput from infer.
#pragma once

#include "kernels/cpu/norm_rows.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// Which operands an operator has where; -1: none.
struct NormOperands {
  int x = 0, scale = 1, bias = 2;
  int y = 0, mean = 1, inv = 2;
};

int norm_axis(const Shape& x, const Attributes& attributes);
NormRows rows_of(const Shape& x, const Attributes& attributes, bool centred);
Shape stats_shape(const Shape& x, const Attributes& attributes);  // 1 behind the axis

// Does `operand` (scale or bias) hold one row of x's normalised axes?
bool is_one_row(const Shape& operand, const Shape& x, int axis);

// Scale and bias must broadcast to x.
Status check_norm_operand(const TensorDesc& x, const TensorDesc& operand, const char* name);

// y, and the statistics that are wanted. T: float, double, BFloat16 or Half.
template <typename T>
bool accepts_norm(const Problem& p);
template <typename T>
std::unique_ptr<Kernel> create_norm(const Problem& p, bool centred, NormOperands operands);

// y, mean, inv (per row) in double.
std::vector<RefTensor> reference_norm(const RefTensor& x, const RefTensor* scale,
                                      const RefTensor* bias, const Attributes& attributes,
                                      bool centred);

// Sets the gradients of scale and bias and gives that of x. `mean` none: not centred. `dmean` and
// `dinv`: gradients of the statistics, none mostly.
struct NormGrad {
  Ref dy, x, scale, mean, inv, dmean, dinv;
};
Ref emit_norm_grad(GradBuilder& b, const NormGrad& g, size_t scale_input, size_t bias_input);

std::vector<SampleCase> norm_samples(bool bias, size_t outputs);

}  // namespace ofsdp::kernels::ops
