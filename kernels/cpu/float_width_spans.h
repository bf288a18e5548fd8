// The loops of float_width.h that are written with intrinsics, in the folder of each kind of
// processor; null if this processor has no instructions for one. They leave the ends of a span,
// and vectors that their instructions would convert to other bits, to the plain loops.
#pragma once

#include "kernels/cpu/float_width.h"

namespace ofsdp::kernels {

WidthSpan own_narrow_bf16();
WidthSpan own_narrow_half();
WidthSpan own_widen_half();

void plain_narrow_bf16(const void* src, void* dst, int64_t begin, int64_t end);
void plain_narrow_half(const void* src, void* dst, int64_t begin, int64_t end);
void plain_widen_half(const void* src, void* dst, int64_t begin, int64_t end);

}  // namespace ofsdp::kernels
