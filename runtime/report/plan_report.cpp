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

Status check_world(const Topology& topology, const RunPlan& plan, const Options& options) {
  if (topology.world() == plan.plan.world) return {};
  return input_error(
      "--topology {}: hosts times ranks_per_host is {}, but the plan is for {} ranks",
      options.report.topology, topology.world(), plan.plan.world);
}

void add_program(PlanReport& report, const ProgramKey& key, const ProgramPlan& program,
                 const Options& options) {
  const RunPlan& run = *report.plan;
  ProgramReport entry{&key, &program, times_an_update(key, options.batch), {}};
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

PeakShares peak_shares(const RunPlan& plan) {
  const ProgramPlan& program = largest_program(plan);
  PeakShares shares;
  shares.parameters = plan.memory.parameter_bytes;
  shares.optimizer = plan.memory.optimizer_bytes;
  shares.gradients = plan.memory.gradient_bytes;
  shares.gathered = program.memory.peak_gathered;
  shares.activations = program.memory.peak_activations;
  shares.workspace = program.memory.peak_workspace;
  shares.constants = plan.memory.kept;
  shares.input = plan.memory.staging + plan.memory.data;
  shares.checkpoint = plan.memory.checkpoint;
  shares.trace = plan.memory.trace;
  shares.in_out = plan.memory.device_io + plan.memory.pinned_io;
  size_t sum = 0;
  for (const size_t bytes : {shares.parameters, shares.optimizer, shares.gradients, shares.gathered,
                             shares.activations, shares.workspace, shares.constants, shares.input,
                             shares.checkpoint, shares.trace, shares.in_out}) {
    sum += bytes;
  }
  OFSDP_CHECK(sum <= plan.memory.planned_bytes(), "{} bytes of {}", sum,
              plan.memory.planned_bytes());
  shares.unused = plan.memory.planned_bytes() - sum;
  if (program.memory.peak_step >= 0) {
    shares.node = name_of_step(program, plan.plan, program.memory.peak_step);
  }
  return shares;
}

Result<PlanReport> make_report(const RunPlan& plan, const Options& options) {
  PlanReport report;
  report.plan = &plan;
  report.peak = peak_shares(plan);
  report.exposed_of_unit.assign(plan.plan.units.size(), 0);
  if (!options.report.topology.empty()) {
    OFSDP_ASSIGN_OR_RETURN(report.machine.topology, read_topology(options.report.topology));
    OFSDP_RETURN_IF_ERROR(check_world(*report.machine.topology, plan, options));
  }
  if (plan.device != nullptr) {
    report.device = device_part(plan);
  } else {
    OFSDP_ASSIGN_OR_RETURN(report.machine.kernels, measure_kernels(plan, kMeasureFor));
    OFSDP_ASSIGN_OR_RETURN(report.machine.rates, measure_rates(plan));
  }
  for (const auto& [key, program] : plan.programs) add_program(report, key, program, options);
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
