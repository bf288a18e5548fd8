// What Dropout and its gradient share. Ownership: none. Threads: any. Errors: none.
#pragma once

namespace ofsdp::kernels::ops {

// What elements that are kept are multiplied by.
inline double dropout_scale(double ratio) { return ratio >= 1 ? 0 : 1 / (1 - ratio); }

}  // namespace ofsdp::kernels::ops
