// RMSNormalization under each of its names; see rms_normalization.cpp. Ownership: values. Threads:
// any. Errors: kInput from infer.
#pragma once

#include "kernels/ops/norm/normalized_rows.h"

namespace ofsdp::kernels::ops {

Result<std::vector<TensorDesc>> infer_rms(const InferContext& c);
void grad_rms(GradBuilder& b);
std::vector<RefTensor> reference_rms(const ReferenceContext& c);
std::vector<Implementation> rms_kernels();

}  // namespace ofsdp::kernels::ops
