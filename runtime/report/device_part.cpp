#include "runtime/report/device_part.h"

#include <array>

#include "kernels/base/escaped.h"
#include "runtime/plan/device_choice.h"

namespace ofsdp::runtime {
namespace {

void add_programs(const RunPlan& run, DevicePart& to) {
  for (const auto& [key, program] : run.programs) {
    const LoweredProgram lowered = lower(program, lowering(run, 0));
    to.streams.emplace(
        &program, plan_streams(step_accesses(lowered.operations, program.schedule.steps.size())));
    to.traffic.emplace(&program, step_traffic(lowered, program));
  }
}

}  // namespace

DevicePart device_part(const RunPlan& run) {
  const RankMemoryPlan& m = run.memory;
  DevicePart part;
  part.description = run.device->description();
  part.here = !only_plans(*run.device);
  part.device_bytes = region_bytes(m.arena) + region_bytes(m.kept) + region_bytes(m.state) +
                      region_bytes(m.shared) + region_bytes(m.device_io);
  part.pinned_bytes = region_bytes(m.staging) + region_bytes(m.pinned_io);
  part.host_bytes = m.planned_bytes() - part.device_bytes - part.pinned_bytes;
  add_programs(run, part);
  return part;
}

std::string text(const DevicePart& part) {
  std::string out = format_text("of these {} on the device, {} pinned on the host, {} elsewhere\n",
                                part.device_bytes, part.pinned_bytes, part.host_bytes);
  if (!part.here) {
    out +=
        "not known without a GPU: which operators have kernels, their workspaces (counted as 0) "
        "and which nodes are joined (none here)\n";
  }
  return out + "no times: nothing measures GPUs yet; --device cpu predicts for this machine\n";
}

const char* stream_name(Lane stream) {
  constexpr std::array kNames{"compute", "communication", "download"};
  return kNames[static_cast<size_t>(stream)];
}

std::string streams_line(const DevicePart& part, const ProgramPlan& program) {
  const StreamPlan& plan = part.streams.at(&program);
  std::array<int, 3> steps{};
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    if (!traits(program.schedule.steps[s].kind).on_device) continue;
    ++steps[static_cast<size_t>(plan.steps[s].stream)];
  }
  std::string out = "streams:";
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i] == 0) continue;
    out += format_text("{} {} {} step{}", i == 0 ? "" : ",", stream_name(static_cast<Lane>(i)),
                       steps[i], steps[i] == 1 ? "" : "s");
  }
  out += format_text("; {} event{}", plan.events, plan.events == 1 ? "" : "s");
  std::string joined;
  for (const auto& [rule, count] : program.graph.fused) {
    joined += format_text("{}{} {}", joined.empty() ? "; joined: " : ", ", rule, count);
  }
  return out + joined + "\n";
}

std::vector<std::pair<std::string, TensorDesc>> pitched_results(const ProgramPlan& program) {
  std::vector<std::pair<std::string, TensorDesc>> list;
  for (const Node& node : program.graph.nodes) {
    if (node.op->view) continue;
    for (const ValueId id : node.outputs) {
      const TensorDesc& desc = program.graph.value(id).desc;
      if (desc.pitch != 0) list.emplace_back(node.name, desc);
    }
  }
  return list;
}

std::string rows_line(const ProgramPlan& program) {
  std::string out;
  for (const auto& [node, desc] : pitched_results(program)) {
    out += format_text("{}'{}' {} in rows of {}", out.empty() ? "rows: " : ", ", escaped(node),
                       desc.dense().text(), desc.pitch);
  }
  return out.empty() ? "" : out + "\n";
}

std::string stream_text(const StreamStep& step) {
  std::string out;
  if (step.forks >= 0) out += format_text("; forks {}", step.forks);
  for (size_t i = 0; i < step.waits.size(); ++i) {
    out += format_text("{} {}", i == 0 ? "; waits" : ",", step.waits[i]);
  }
  if (step.records >= 0) out += format_text("; event {}", step.records);
  if (out.empty() && step.stream == Lane::kCompute) return "";
  return format_text("  [{}{}]", stream_name(step.stream), out);
}

}  // namespace ofsdp::runtime
