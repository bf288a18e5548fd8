// What ArgMax and ArgMin share: everything but the comparison.
//
// Attributes axis, keepdims, select_last_index as ONNX defines them. Every numeric dtype; the
// output is int64. Like numpy, the first NaN of a line is taken for its extreme.
//
// Owns: nothing. Threads: as Kernel. Errors: kInput for an empty axis.
#pragma once

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

OpDef arg_extreme(const char* name, bool largest);

}  // namespace ofsdp::kernels::ops
