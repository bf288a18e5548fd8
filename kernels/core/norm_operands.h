// The operand of ofsdp.LayerNormalizationGrad that planning puts in (importer/passes/passes.h,
// join_norm_addends), for whoever makes or takes such a node. Values. Threads: any. Errors: none.
#pragma once

#include <cstddef>

namespace ofsdp::kernels {

// The input that is added to dx.
inline constexpr size_t kNormAddend = 7;

}  // namespace ofsdp::kernels
