// What com.microsoft.SkipLayerNormalization and its simplified sibling share; formulas in
// skip_layer_normalization.cpp. Ownership: values. Threads: any. Errors: kInput from infer.
#pragma once

#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// Where the operands are: inputs x, skip, scale, bias of the norm (centred only), bias of the sum.
struct SkipNorm {
  bool centred;
  size_t norm_bias() const { return centred ? 3 : 99; }
  size_t sum_bias() const { return centred ? 4 : 3; }
};

Result<std::vector<TensorDesc>> infer_skip_norm(const InferContext& c, SkipNorm s);
void grad_of_skip_norm(GradBuilder& b, SkipNorm s);
std::vector<RefTensor> reference_skip_norm(const ReferenceContext& c, SkipNorm s);
bool accepts_skip_norm(const Problem& p);
std::unique_ptr<Kernel> create_skip_norm(const Problem& p, SkipNorm s);
std::vector<SampleCase> skip_norm_samples(SkipNorm s);

}  // namespace ofsdp::kernels::ops
