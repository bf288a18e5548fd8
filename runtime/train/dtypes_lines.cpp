#include "runtime/train/dtypes_lines.h"

namespace ofsdp::runtime {

std::string dtypes_lines(const Options& options, bool on_device) {
  const ShardingOptions& s = options.sharding;
  const bool tf32 = s.matmul_precision == MatmulPrecision::kHigh;
  std::string lines = format_text(
      "parameters and computation {}, reduction {}, buffers {}; masters, optimizer state, loss "
      "float32{}{}\n",
      dtype_name(s.param_dtype), dtype_name(s.reduce_dtype), dtype_name(s.buffer_dtype),
      s.param_dtype == DType::kFloat16 ? "; dynamic loss scale" : "",
      tf32 && on_device ? "; products of float32 in TF32" : "");
  if (tf32 && !on_device) {
    lines += "--matmul-precision high: no effect, since the run is on the CPU\n";
  }
  return lines;
}

}  // namespace ofsdp::runtime
