// What GroupNormalization and InstanceNormalization (a group for each channel) share: x is
// [N, groups, channels of a group, inner]; formulas in group_normalization.cpp.
// Ownership: values. Threads: any. Errors: kInput from infer.
#pragma once

#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

struct GroupExtent {
  int64_t batch, groups, each, inner;  // each: channels of a group
  double epsilon;

  int64_t channels() const { return groups * each; }
  int64_t rows() const { return batch * groups; }
  int64_t width() const { return each * inner; }
};

inline GroupExtent group_extent(const Shape& x, int64_t groups, const Attributes& attributes) {
  return {x[0], groups, groups == 0 ? 0 : x[1] / groups, x.numel(2, x.rank()),
          static_cast<double>(attributes.f("epsilon", 1e-5f))};
}

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

}  // namespace ofsdp::kernels::ops
