#include "runtime/report/plan_report.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "importer/write/model_output.h"
#include "kernels/base/text.h"
#include "kernels/core/device.h"
#include "kernels/core/op_def.h"
#include "plugins/loading/loader.h"
#include "runtime/compile/compile.h"
#include "runtime/compile/prediction.h"

namespace ofsdp::runtime {

namespace {

size_t matrix_bytes(const OrthogonalMatrix& m) {
  return static_cast<size_t>(m.numel()) * sizeof(float);
}

std::string gigaflops(double flops) { return readable_number(flops * 1e-9, 3); }

}  // namespace

std::vector<DealtMatrix> dealt_matrices(const CompiledRun& plan) {
  std::vector<DealtMatrix> list;
  for (size_t u = 0; u < plan.orthogonal.size(); ++u) {
    const Unit& unit = plan.shards.units[u];
    for (const OrthogonalMatrix& m : plan.orthogonal[u]) {
      const auto param = std::ranges::find(unit.params, m.offset, &UnitParam::offset);
      list.push_back({param->name, unit.id, &m, owners(plan.shards, unit, m)});
    }
  }
  return list;
}

std::vector<OrthogonalLoad> orthogonal_loads(const CompiledRun& plan) {
  std::vector<OrthogonalLoad> loads(static_cast<size_t>(plan.shards.world));
  for (const DealtMatrix& dealt : dealt_matrices(plan)) {
    for (const int rank : dealt.ranks) {
      OrthogonalLoad& load = loads[static_cast<size_t>(rank)];
      ++load.matrices;
      load.bytes += matrix_bytes(*dealt.matrix);
      load.flops += orthogonal_flops(*dealt.matrix);
    }
  }
  return loads;
}

std::string orthogonal_table(const CompiledRun& plan) {
  const std::vector<DealtMatrix> list = dealt_matrices(plan);
  if (list.empty()) return "";
  size_t width = 6;
  for (const DealtMatrix& dealt : list) width = std::max(width, escaped(dealt.name).size());
  const auto padded = [width](std::string text) {
    text.resize(width, ' ');
    return text;
  };
  std::string out = format_text("\nNewton-Schulz (Muon)\n{}  {:>5}  {:>13}  {:>9}  {:>12}  rank\n",
                                padded("matrix"), "unit", "shape", "size", "GFLOP");
  for (const DealtMatrix& dealt : list) {
    const OrthogonalMatrix& m = *dealt.matrix;
    out += format_text("{}  {:>5}  {:>13}  {:>9}  {:>12}  {}\n", padded(escaped(dealt.name)),
                       format_text("u{}", dealt.unit), format_text("{} x {}", m.rows, m.columns),
                       readable_bytes(matrix_bytes(m)), gigaflops(orthogonal_flops(m)),
                       joined(dealt.ranks, ", "));
  }
  out += format_text("\n{:>4}  {:>8}  {:>9}  {:>12}\n", "rank", "matrices", "size", "GFLOP");
  const std::vector<OrthogonalLoad> loads = orthogonal_loads(plan);
  for (size_t r = 0; r < loads.size(); ++r) {
    out += format_text("{:>4}  {:>8}  {:>9}  {:>12}\n", r, loads[r].matrices,
                       readable_bytes(loads[r].bytes), gigaflops(loads[r].flops));
  }
  return out;
}

namespace {

size_t bytes_of(const Span& elements, const Operand& of) {
  return of.area == Area::kNone ? 0 : static_cast<size_t>(elements.numel) * dtype_size(of.dtype);
}

class TrafficCounter {
 public:
  explicit TrafficCounter(const Graph& graph) : graph_(graph) {}

  StepTraffic count(const Operation& op) const {
    switch (op.kind) {
#define OPERATION(kind, engine, cost, traffic, description) \
  case OpKind::k##kind:                                     \
    return traffic(op);
#define HOST_OPERATION(kind, description) \
  case OpKind::k##kind:                   \
    break;
#include "runtime/compile/program/steps.inc"
    }
    return {};
  }

 private:
  // --- The column `traffic` of steps.inc

  static StepTraffic none(const Operation&) { return {}; }

  // Inputs and outputs; the workspace follows them.
  StepTraffic node(const Operation& op) const {
    const Node& node = graph_.nodes[static_cast<size_t>(op.node)];
    StepTraffic sum;
    for (size_t i = 0; i < node.inputs.size() + node.outputs.size(); ++i) {
      const Operand& operand = op.operands[i];
      if (operand.area == Area::kNone) continue;
      (operand.writes ? sum.written : sum.read) += operand.bytes();
    }
    return sum;
  }

  static StepTraffic place_rows(const Operation& op) {
    return {op.operands[0].bytes(), op.dst.bytes()};
  }

  static StepTraffic unshard(const Operation& op) {
    if (!op.converts) return {};
    return {bytes_of(op.part, op.src), bytes_of(op.part, op.dst)};
  }

  static StepTraffic copy(const Operation& op) { return {op.src.bytes(), op.dst.bytes()}; }

  static StepTraffic add(const Operation& op) {
    return {op.src.bytes() + op.dst.bytes(), op.dst.bytes()};
  }

  static StepTraffic sum(const Operation& op) { return gradient(op, op.stages.update); }
  static StepTraffic update(const Operation& op) { return gradient(op, true); }

  // Reads parameters and states, and writes the changed ones.
  static StepTraffic optimizer_step(const Operation& op) {
    StepTraffic sum;
    for (const Operand& operand : op.operands) {
      sum.read += operand.bytes();
      if (operand.writes) sum.written += operand.bytes();
    }
    return sum;
  }

  // Reads the gradient, twice if it has a norm. An update also reads and writes the operands after
  // slot and gradient.
  static StepTraffic gradient(const Operation& op, bool updates) {
    StepTraffic sum;
    const size_t gradient = bytes_of(op.part, op.src);
    if (op.stages.norm) sum.read += gradient;
    if (op.dst.area != Area::kNone || updates) sum.read += gradient;
    if (op.dst.area != Area::kNone) sum.written += op.dst.bytes();
    for (size_t i = 2; updates && i < op.operands.size(); ++i) {
      const Operand& operand = op.operands[i];
      if (operand.dtype == DType::kFloat32) sum.read += operand.bytes();  // else a rounded copy
      sum.written += operand.bytes();
    }
    return sum;
  }

  const Graph& graph_;
};

}  // namespace

std::vector<StepTraffic> step_traffic(const LoweredProgram& lowered, const StepProgram& program) {
  std::vector<StepTraffic> steps(program.schedule.steps.size());
  const TrafficCounter counter(program.graph);
  for (const Operation& op : lowered.operations) {
    StepTraffic& step = steps[static_cast<size_t>(op.step)];
    const StepTraffic more = counter.count(op);
    step.read += more.read;
    step.written += more.written;
  }
  return steps;
}

namespace {

void add_programs(const CompiledRun& run, DevicePart& to) {
  for (const auto& [key, program] : run.programs) {
    const LoweredProgram lowered = lower(program, lowering(run, 0));
    to.streams.emplace(&program, schedule_streams(step_accesses(lowered.operations,
                                                                program.schedule.steps.size())));
    to.traffic.emplace(&program, step_traffic(lowered, program));
  }
}

}  // namespace

DevicePart device_part(const CompiledRun& run) {
  const MemoryMap& m = run.memory;
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
        "not known without a GPU: for which operands kernels are there, their workspaces (counted "
        "as 0) "
        "and which nodes are joined (none here)\n";
  }
  return out + "no times: nothing measures GPUs yet; --device cpu predicts for this machine\n";
}

const char* stream_name(Lane stream) {
  constexpr std::array kNames{"compute", "communication", "download"};
  return kNames[static_cast<size_t>(stream)];
}

std::string streams_line(const DevicePart& part, const StepProgram& program) {
  const StreamSchedule& plan = part.streams.at(&program);
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

std::vector<std::pair<std::string, TensorDesc>> pitched_results(const StepProgram& program) {
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

std::string rows_line(const StepProgram& program) {
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

namespace {

constexpr std::chrono::milliseconds kMeasureFor{1200};

const StepProgram& largest_program(const CompiledRun& plan) {
  const auto largest = std::ranges::max_element(
      plan.programs, {}, [](const auto& entry) { return entry.second.memory.arena_bytes; });
  return largest->second;
}

std::string name_of_step(const StepProgram& program, const Plan& plan, int s) {
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

Status check_world(const Topology& topology, const CompiledRun& plan, const RunSettings& settings) {
  if (topology.world() == plan.shards.world) return {};
  return input_error(
      "--topology {}: hosts times ranks_per_host is {}, but the plan is for {} ranks",
      settings.options.report.topology, topology.world(), plan.shards.world);
}

void add_program(PlanReport& report, const ProgramKey& key, const StepProgram& program) {
  const CompiledRun& run = *report.plan;
  ProgramReport entry{&key, &program, times_an_update(key, run), {}};
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

Peak peak_of(const CompiledRun& plan) {
  const MemoryMap& m = plan.memory;
  const StepProgram& program = largest_program(plan);
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
  // Unused: the arena's rest at that moment, gaps between pieces, ends of last pages.
  peak.shares.push_back({"unused", "not used then", m.planned_bytes() - sum});
  if (program.memory.peak_step >= 0) {
    peak.node = name_of_step(program, plan.shards, program.memory.peak_step);
  }
  return peak;
}

// In rings, (n - 1)/n of the bytes come from other ranks; an all-reduce is two rings.
size_t received_bytes(const CompiledRun& plan) {
  double bytes = 0;
  for (const auto& [key, program] : plan.programs) {
    const auto times = static_cast<double>(times_an_update(key, plan));
    if (times == 0) continue;
    for (const Operation& op : lower(program, lowering(plan, 0)).operations) {
      const double others = op.group.count - 1;
      const double share = others / std::max(op.group.count, 1);
      if (op.kind == OpKind::kUnshard) bytes += times * share * op.dst.bytes();
      if (op.kind == OpKind::kAllReduce) bytes += times * 2 * share * op.dst.bytes();
      if (op.kind == OpKind::kReduce) {
        bytes += times * others * op.part.numel * dtype_size(op.src.dtype);
      }
    }
  }
  return static_cast<size_t>(bytes);
}

Result<PlanReport> make_report(const CompiledRun& plan, const RunSettings& settings) {
  PlanReport report;
  report.plan = &plan;
  report.peak = peak_of(plan);
  report.exposed_of_unit.assign(plan.shards.units.size(), 0);
  if (!settings.options.report.topology.empty()) {
    OFSDP_ASSIGN_OR_RETURN(report.machine.topology,
                           read_topology(settings.options.report.topology));
    OFSDP_RETURN_IF_ERROR(check_world(*report.machine.topology, plan, settings));
  }
  if (plan.device != nullptr) {
    report.device = device_part(plan);
  } else {
    OFSDP_RETURN_IF_ERROR(measure_kernels({&plan}, kMeasureFor, report.machine.kernels));
    OFSDP_ASSIGN_OR_RETURN(report.machine.rates, measure_rates(plan));
  }
  for (const auto& [key, program] : plan.programs) add_program(report, key, program);
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

namespace {

std::string choice_text(const KernelChoice& choice) {
  std::string text = choice.taken.empty() ? "none" : choice.taken;
  std::string refused;
  for (const KernelChoice::Refused& r : choice.refused) {
    refused += (refused.empty() ? "not " : "; not ") + r.name;
    if (!r.reason.empty()) refused += ": " + r.reason;
  }
  return refused.empty() ? text : text + " (" + refused + ")";
}

KernelChoice find_kernel_choice(const OpDef& op, const Problem& problem, Device* device) {
  KernelChoice choice;
  if (device != nullptr && plugin_takes(op, problem)) {
    choice.taken = "plug-in";
  } else if (device != nullptr) {
    const auto kernel = device->make_kernel(op.full_name(), problem, &choice);
    if (kernel != nullptr && choice.taken.empty()) choice.taken = "not known without the GPU";
  } else {
    (void)create_kernel(op, problem, &choice).ok();
  }
  return choice;
}

}  // namespace

std::string explain(const CompiledRun& plan) {
  const StepProgram& program = std::ranges::max_element(plan.programs, {}, [](const auto& entry) {
                                 return entry.second.memory.arena_bytes;
                               })->second;
  std::string text = "kernels:\n";
  for (const Node& node : program.graph.nodes) {
    if (node.op->view) continue;
    const KernelChoice choice =
        find_kernel_choice(*node.op, problem_of(program.graph, node), plan.device);
    text += format_text("  {} '{}': {}\n", escaped(node.op->full_name()), escaped(node.name),
                        choice_text(choice));
  }
  return text;
}

}  // namespace ofsdp::runtime
