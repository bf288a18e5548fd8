// What DepthToSpace and SpaceToDepth share. Both move the elements between [N, C, H b, W b] and
// [N, C b b, H, W], b the attribute blocksize; where the two block axes stand in the C b b channels
// is the attribute mode: DCR (block row, block column, channel) or CRD (channel, row, column).
//
// Owns: values. Threads: kernels fan out over the pool. Errors: kInput.
#pragma once

#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// The tensors seen with 6 axes, in the order N, C, H, block row, W, block column.
struct BlockView {
  Shape shape;
  std::vector<int64_t> space;  // strides of [N, C, H b, W b]
  std::vector<int64_t> depth;  // strides of [N, C b b, H, W]
};

Status check_block(const InferContext& c);
BlockView block_view(const Shape& space, const Attributes& attributes);
// The gradient of one is the other.
void block_grad(GradBuilder& b, const char* inverse);
std::vector<RefTensor> block_reference(const BlockView& v, const ReferenceContext& c,
                                       const std::vector<int64_t>& from,
                                       const std::vector<int64_t>& to);
std::vector<SampleCase> block_samples(const std::vector<Shape>& shapes);

}  // namespace ofsdp::kernels::ops
