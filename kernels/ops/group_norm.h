// What GroupNormalization and InstanceNormalization (a group for each channel) share: x is
// [N, groups, channels of a group, inner]; formulas in group_normalization.cpp.
// Ownership: values. Threads: any. Errors: kInput from infer.
#pragma once

#include "kernels/ops/support.h"

namespace ofsdp::ops {

Result<std::vector<TensorDesc>> infer_group_norm(const InferContext& c, int64_t groups);
void grad_of_group_norm(GradBuilder& b, int64_t groups);
std::vector<RefTensor> reference_group_norm(const ReferenceContext& c, int64_t groups);

// float or double, all inputs of that type.
template <typename T>
bool accepts_group_norm(const Problem& p);
template <typename T>
std::unique_ptr<Kernel> create_group_norm(const Problem& p, int64_t groups);

SampleCase group_norm_sample(const char* name, Shape x, int64_t groups,
                             DType dtype = DType::kFloat32, double tolerance = 2e-5);

}  // namespace ofsdp::ops
