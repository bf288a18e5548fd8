#include "runtime/report/plan_report.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "importer/write/output_files.h"
#include "runtime/plan/predict/prediction.h"

namespace ofsdp::runtime {
namespace {

constexpr std::chrono::milliseconds kMeasureFor{1200};

const ProgramPlan& largest_program(const RunPlan& plan) {
  const auto largest = std::ranges::max_element(
      plan.programs, {}, [](const auto& entry) { return entry.second.memory.arena_bytes; });
  return largest->second;
}

std::string name_of_step(const ProgramPlan& program, const Plan& plan, int s) {
  const Step& step = program.schedule.steps[static_cast<size_t>(s)];
  const StepSubject subject = traits(step.kind).subject;
  if (subject == StepSubject::kNode) {
    const Node& node = program.graph.nodes[static_cast<size_t>(step.index)];
    return format_text("{} '{}'", node.op->full_name(), node.name);
  }
  if (step.index < 0 || subject == StepSubject::kBuffer) return step_name(step.kind);
  return format_text("{} u{} ({})", step_name(step.kind), step.index,
                     plan.units[static_cast<size_t>(step.index)].name);
}

Status check_world(const Topology& topology, const RunPlan& plan, const RunSettings& settings) {
  if (topology.world() == plan.plan.world) return {};
  return input_error(
      "--topology {}: hosts times ranks_per_host is {}, but the plan is for {} ranks",
      settings.options.report.topology, topology.world(), plan.plan.world);
}

void add_program(PlanReport& report, const ProgramKey& key, const ProgramPlan& program,
                 const RunSettings& settings) {
  const RunPlan& run = *report.plan;
  ProgramReport entry{&key, &program, times_an_update(key, settings.batch), {}};
  if (report.device) {
    report.programs.push_back(std::move(entry));
    return;
  }
  entry.simulation = simulate_program(run, program, report.machine);
  const auto times = static_cast<double>(entry.times_an_update);
  report.update_seconds += times * entry.simulation.seconds;
  report.update_exposed += times * entry.simulation.exposed;
  report.update_compute += times * entry.simulation.compute;
  report.update_communication += times * entry.simulation.communication;
  for (size_t u = 0; u < report.exposed_of_unit.size(); ++u) {
    report.exposed_of_unit[u] += times * entry.simulation.exposed_of_unit[u];
  }
  report.programs.push_back(std::move(entry));
}

}  // namespace

Peak peak_of(const RunPlan& plan) {
  const RankMemoryPlan& m = plan.memory;
  const ProgramPlan& program = largest_program(plan);
  Peak peak{{{"parameters", "parameters", m.parameter_bytes},
             {"gradients", "gradients", m.gradient_bytes},
             {"optimizer_state", "optimizer state", m.optimizer_bytes},
             {"gathered_units", "gathered units", program.memory.peak_gathered},
             {"activations", "activations", program.memory.peak_activations},
             {"workspace", "workspace", program.memory.peak_workspace},
             {"constants", "constants and frozen parameters", m.kept},
             {"input", "input", m.staging + m.data},
             {"checkpoint", "checkpoint copy", m.checkpoint},
             {"trace", "trace", m.trace},
             {"metrics", "metrics", m.metrics},
             {"watch", "watched norms", m.watch + m.watch_slot_bytes}},
            ""};
  if (plan.device != nullptr) {
    peak.shares.push_back({"in_out", "in and out of the device", m.device_io + m.pinned_io});
  }
  size_t sum = 0;
  for (const PeakShare& share : peak.shares) sum += share.bytes;
  OFSDP_CHECK(sum <= m.planned_bytes(), "{} bytes of {}", sum, m.planned_bytes());
  // Unused are the rest of the arena at that moment, gaps between pieces, the rest of last pages.
  peak.shares.push_back({"unused", "not used then", m.planned_bytes() - sum});
  if (program.memory.peak_step >= 0) {
    peak.node = name_of_step(program, plan.plan, program.memory.peak_step);
  }
  return peak;
}

Result<PlanReport> make_report(const RunPlan& plan, const RunSettings& settings) {
  PlanReport report;
  report.plan = &plan;
  report.peak = peak_of(plan);
  report.exposed_of_unit.assign(plan.plan.units.size(), 0);
  if (!settings.options.report.topology.empty()) {
    OFSDP_ASSIGN_OR_RETURN(report.machine.topology,
                           read_topology(settings.options.report.topology));
    OFSDP_RETURN_IF_ERROR(check_world(*report.machine.topology, plan, settings));
  }
  if (plan.device != nullptr) {
    report.device = device_part(plan);
  } else {
    OFSDP_ASSIGN_OR_RETURN(report.machine.kernels, measure_kernels(plan, kMeasureFor));
    OFSDP_ASSIGN_OR_RETURN(report.machine.rates, measure_rates(plan));
  }
  for (const auto& [key, program] : plan.programs) add_program(report, key, program, settings);
  return report;
}

Status write_page(const std::string& path, const std::string& page) {
  OFSDP_RETURN_IF_ERROR(check_output_path(path));
  OFSDP_ASSIGN_OR_RETURN(const std::string temporary, create_temporary(path));
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << page;
  file.close();
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const std::string reason = std::strerror(errno);
  std::remove(temporary.c_str());
  return fault("{}: cannot be written: {}", path, reason);
}

}  // namespace ofsdp::runtime
