// Declares add_NAME for each row in operators.inc: it registers the operators of one file.
#pragma once

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

#define OP(name) void add_##name(Registry& registry);
#include "kernels/ops/operators.inc"
#undef OP

}  // namespace ofsdp::kernels::ops
