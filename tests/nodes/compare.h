// Outputs against the expected values in a node test, compared as in ONNX's runner: floats within
// 1e-7 + 1e-3 |expected| (bfloat16: 2^-6 |expected|), NaN equals NaN; all else exactly.
//
// Threads: any. Errors: the first difference, with both values.
#pragma once

#include "kernels/core/tensor.h"
#include "tests/support/namespaces.h"

namespace ofsdp::nodes {

Status compare(const Constant& found, const Constant& expected);

}  // namespace ofsdp::nodes
