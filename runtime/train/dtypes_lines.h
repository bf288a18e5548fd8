// What a run says about the types that it computes in: --param-dtype, --reduce-dtype, --buffer-dtype,
// --matmul-precision.
//
// Pure. Threads: any. Errors: none.
#pragma once

#include <string>

#include "runtime/options.h"

namespace ofsdp::runtime {

std::string dtypes_lines(const Options& options, bool on_device);

}  // namespace ofsdp::runtime
