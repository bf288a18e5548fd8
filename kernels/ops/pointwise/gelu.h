// Gelu and its derivative in double: the oracle of every operator that computes them.
//
// Threads: any.
#pragma once

namespace ofsdp::kernels::ops {

double reference_gelu(double x, bool tanh);
double reference_gelu_slope(double x, bool tanh);

}  // namespace ofsdp::kernels::ops
