#include "runtime/train/run_lines.h"

#include "kernels/base/escaped.h"
#include "kernels/base/readable.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::runtime {
namespace {

OffloadTraffic of_update(const RunPlan& run, const BatchSizes& batch) {
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

std::string dtypes_lines(const Options& options, bool on_device) {
  const ShardingOptions& s = options.sharding;
  const bool tf32 = s.matmul_precision == MatmulPrecision::kHigh;
  const StateDType states = options.optimizer.state_dtype;
  const std::string rest =
      states == StateDType::kFloat32
          ? "masters, optimizer state, loss float32"
          : format_text("optimizer state {}; masters, loss float32", name_of(states));
  std::string lines =
      format_text("parameters and computation {}, reduction {}, buffers {}; {}{}{}\n",
                  dtype_name(s.param_dtype), dtype_name(s.reduce_dtype), dtype_name(s.buffer_dtype),
                  rest, s.param_dtype == DType::kFloat16 ? "; dynamic loss scale" : "",
                  tf32 && on_device ? "; products of float32 in TF32" : "");
  if (tf32 && !on_device) {
    lines += "--matmul-precision high: no effect, since the run is on the CPU\n";
  }
  return lines;
}

std::string teacher_line(const ModelSetup& setup) {
  const Teacher* teacher = setup.source->teacher();
  if (teacher == nullptr) return "";
  int64_t count = 0, elements = 0;
  for (const Parameter& p : setup.graph.parameters) {
    if (!p.of_teacher) continue;
    ++count;
    elements += setup.graph.value(p.value).desc.numel();
  }
  return format_text("teacher: {}, {} tensors, {} numbers, frozen; weight {}, temperature {}\n",
                     escaped(teacher->file.path()), count, readable_count(elements),
                     teacher->how.weight, teacher->how.temperature);
}

std::string offload_line(const RunPlan& run, const RunSettings& settings, bool exact) {
  const CpuOffload offloads = settings.options.sharding.cpu_offload;
  if (offloads == CpuOffload::kNone) return "";
  const std::string flag = format_text("--cpu-offload {}", name_of(offloads));
  if (run.device == nullptr) return flag + ": no effect, since the run is on the CPU\n";
  const OffloadPlan& offload = run.memory.offload;
  const OffloadTraffic traffic = of_update(run, settings.batch);
  const auto shown = [exact](size_t bytes) {
    return exact ? format_text("{} bytes", bytes) : readable_bytes(bytes);
  };
  return format_text(
      "{}: {} a rank pinned on the host (parameters {}, optimizer state {}, gradients {}); an "
      "update copies {} up and {} down\n",
      flag, shown(region_bytes(offload.bytes)), shown(offload.parameter_bytes),
      shown(offload.optimizer_bytes), shown(offload.gradient_bytes), shown(traffic.up),
      shown(traffic.down));
}

std::string slices_line(const BatchSizes& batch) {
  if (batch.slices == 0) return "";
  return format_text(
      "across_ranks: {} slices of at most {} samples, {} a rank; the same bits on any number of "
      "ranks with {} thread{} each\n",
      batch.slices, batch.batch_size, batch.grad_accum, pool_threads(),
      pool_threads() == 1 ? "" : "s");
}

std::string memory_lack(const RunPlan& plan, const Communicator& communicator,
                        const MachineMemory& memory) {
  if (plan.device != nullptr) return "";
  const RankMemoryPlan& m = plan.memory;
  const auto ranks = static_cast<size_t>(communicator.ranks_in_common());
  const size_t unpacked = m.data + m.data_elsewhere;  // by one rank, for all of the host
  const size_t needed = ranks * (m.planned_bytes() - m.data) + unpacked;
  if (needed <= static_cast<size_t>(memory.bytes)) return "";
  return format_text("{} needs {} bytes a rank, {} for {} rank{} on this host: {} {} bytes",
                     strategy_name(plan.plan.strategy), m.planned_bytes(), needed, ranks,
                     ranks == 1 ? "" : "s", memory.cgroup ? "its cgroup allows" : "it has",
                     memory.bytes);
}

}  // namespace ofsdp::runtime
