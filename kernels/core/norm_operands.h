// The operand of ofsdp.LayerNormalizationGrad that planning adds (importer/passes/passes.h,
// join_norm_addends), for code that makes or reads such a node.
#pragma once

#include <cstddef>

namespace ofsdp::kernels {

// The input that is added to dx.
inline constexpr size_t kNormAddend = 7;

}  // namespace ofsdp::kernels
