#include "runtime/train/offload_line.h"

namespace ofsdp::runtime {
namespace {

OffloadTraffic of_update(const RunPlan& run, const BatchOptions& batch) {
  OffloadTraffic sum;
  for (int64_t micro = 0; micro < batch.grad_accum; ++micro) {
    const ProgramPlan& program =
        run.programs.at({batch.batch_size, true, micro == 0, micro + 1 == batch.grad_accum});
    const OffloadTraffic one = offload_traffic(lower(program, lowering(run, 0)));
    sum.up += one.up;
    sum.down += one.down;
  }
  return sum;
}

}  // namespace

std::string offload_line(const RunPlan& run, const Options& options) {
  if (options.sharding.cpu_offload == CpuOffload::kNone) return "";
  const bool params = options.sharding.cpu_offload == CpuOffload::kParams;
  const std::string flag = format_text("--cpu-offload {}", params ? "params" : "optimizer");
  if (run.device == nullptr) return flag + ": no effect, since the run is on the CPU\n";
  const OffloadPlan& offload = run.memory.offload;
  const OffloadTraffic traffic = of_update(run, options.batch);
  return format_text(
      "{}: {} bytes a rank pinned on the host (parameters {}, optimizer state {}, gradients {}); "
      "an "
      "update copies {} bytes up and {} down\n",
      flag, region_bytes(offload.bytes), offload.parameter_bytes, offload.optimizer_bytes,
      offload.gradient_bytes, traffic.up, traffic.down);
}

}  // namespace ofsdp::runtime
