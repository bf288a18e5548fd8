// The JSON of `fsdp-run plan --json`; docs/internals/plan.md describes it.
#include <nlohmann/json.hpp>

#include "kernels/cpu/parallel.h"
#include "runtime/report/plan_page_html.h"
#include "runtime/report/plan_report.h"

namespace ofsdp::runtime {

namespace {

using Json = nlohmann::json;

double ms(double seconds) { return seconds * 1e3; }

Json machine_json(const PlanReport& report) {
  if (report.device) {
    const DevicePart& d = *report.device;
    return {{"device", d.description},
            {"here", d.here},
            {"device_bytes", d.device_bytes},
            {"pinned_bytes", d.pinned_bytes},
            {"host_bytes", d.host_bytes}};
  }
  const Machine& machine = report.machine;
  Json out{{"threads", pool_threads()},
           {"copy_gbs", machine.rates.copy * 1e-9},
           {"kernels_measured", machine.kernels.measured},
           {"kernels_estimated", machine.kernels.estimated}};
  if (machine.rates.products > 0) out["product_gflops"] = machine.rates.products * 1e-9;
  if (!machine.topology) return out;
  const Topology& t = *machine.topology;
  out["topology"] = {{"hosts", t.hosts},
                     {"ranks_per_host", t.ranks_per_host},
                     {"compute_factor", t.compute_factor},
                     {"overlap", t.overlap},
                     {"contention", t.contention}};
  return out;
}

Json units_json(const PlanReport& report) {
  Json list = Json::array();
  const Plan& plan = report.plan->shards;
  for (const Unit& unit : plan.units) {
    Json one{{"id", unit.id},
             {"name", unit.name},
             {"parameters", unit.params.size()},
             {"numel", unit.numel},
             {"padded_numel", unit.padded_numel},
             {"owned_numel", plan.owned(unit, 0).numel},
             {"bytes", static_cast<size_t>(unit.numel) * sizeof(float)},
             {"nodes", unit.nodes},
             {"replicated", unit.replicated}};
    if (!report.device) {
      one["exposed_ms"] = ms(report.exposed_of_unit[static_cast<size_t>(unit.id)]);
    }
    list.push_back(std::move(one));
  }
  return list;
}

Json candidates_json(const CompiledRun& plan) {
  Json list = Json::array();
  for (const Candidate& c : plan.candidates) {
    list.push_back({{"flags", c.flags},
                    {"units", c.units},
                    {"largest_unit", c.largest_unit},
                    {"recompute_level", c.recompute_level},
                    {"peak_bytes", c.bytes},
                    {"ms", ms(c.seconds)},
                    {"fits", c.fits},
                    {"chosen", c.chosen}});
  }
  return list;
}

Json memory_json(const PlanReport& report) {
  Json shares;
  for (const PeakShare& share : report.peak.shares) shares[share.key] = share.bytes;
  Json made{{"peak_bytes", report.plan->memory.planned_bytes()},
            {"peak_node", report.peak.node},
            {"at_peak", shares}};
  const std::vector<size_t>& of_ranks = report.plan->memory.bytes_of_places;
  if (!of_ranks.empty()) made["peak_bytes_of_ranks"] = of_ranks;
  return made;
}

// Each rank's load from Muon's matrices.
Json orthogonal_json(const CompiledRun& plan) {
  Json matrices = Json::array(), ranks = Json::array();
  for (const DealtMatrix& dealt : dealt_matrices(plan)) {
    matrices.push_back({{"name", dealt.name},
                        {"unit", dealt.unit},
                        {"rows", dealt.matrix->rows},
                        {"columns", dealt.matrix->columns},
                        {"ranks", dealt.ranks},
                        {"flops", orthogonal_flops(*dealt.matrix)}});
  }
  for (const OrthogonalLoad& load : orthogonal_loads(plan)) {
    ranks.push_back({{"matrices", load.matrices}, {"bytes", load.bytes}, {"flops", load.flops}});
  }
  return {{"matrices", std::move(matrices)}, {"ranks", std::move(ranks)}};
}

Json step_json(const StepProgram& program, const Step& step) {
  Json out{{"step", step_name(step.kind)}};
  const StepSubject subject = traits(step.kind).subject;
  if (subject == StepSubject::kNode) {
    const Node& node = program.graph.nodes[static_cast<size_t>(step.index)];
    out["node"] = node.name;
    out["op"] = node.op->full_name();
    out["backward"] = node.backward;
  } else if (subject == StepSubject::kBuffer) {
    const Carried& c = program.graph.carried[static_cast<size_t>(step.index)];
    out["parameter"] = program.graph.parameters[static_cast<size_t>(c.parameter)].name;
  } else if (step.index >= 0) {
    out["unit"] = step.index;
  }
  return out;
}

// "bfloat16[64,1024,768]" for each value; "" for an absent one.
Json values_json(const Graph& graph, const std::vector<ValueId>& values) {
  Json list = Json::array();
  for (const ValueId id : values) {
    if (id == 0) {
      list.push_back("");
      continue;
    }
    const TensorDesc& desc = graph.value(id).desc;
    list.push_back(format_text("{}[{}]", dtype_name(desc.dtype), joined(desc.shape.axes(), ",")));
  }
  return list;
}

// Adds a device node's operands and the bytes that the step reads and writes.
void add_traffic(const StepProgram& program, const Step& step, const StepTraffic& traffic,
                 Json& to) {
  if (traits(step.kind).subject == StepSubject::kNode) {
    const Node& node = program.graph.nodes[static_cast<size_t>(step.index)];
    to["inputs"] = values_json(program.graph, node.inputs);
    to["outputs"] = values_json(program.graph, node.outputs);
  }
  to["read_bytes"] = traffic.read;
  to["written_bytes"] = traffic.written;
}

// Adds a device step's stream, and the events that it records and waits for.
void add_stream(const StreamStep& step, Json& to) {
  to["stream"] = stream_name(step.stream);
  if (step.forks >= 0) to["forks"] = step.forks;
  if (!step.waits.empty()) to["waits"] = step.waits;
  if (step.records >= 0) to["event"] = step.records;
}

Json schedule_json(const PlanReport& report, const ProgramReport& entry) {
  Json list = Json::array();
  const StepProgram& program = *entry.program;
  for (size_t s = 0; s < program.schedule.steps.size(); ++s) {
    list.push_back(step_json(program, program.schedule.steps[s]));
    list.back()["arena_bytes"] = program.memory.live[s];
    if (!report.device) continue;
    add_stream(report.device->streams.at(&program).steps[s], list.back());
    add_traffic(program, program.schedule.steps[s], report.device->traffic.at(&program)[s],
                list.back());
  }
  for (const SimulatedStep& s : entry.simulation.steps) {
    const char* stream = s.stream == Stream::kCompute ? "compute" : "communication";
    list[static_cast<size_t>(s.step)][stream] = {{"begin_ms", ms(s.begin)}, {"end_ms", ms(s.end)}};
  }
  return list;
}

Json program_json(const PlanReport& report, const ProgramReport& entry) {
  const ProgramKey& key = *entry.key;
  Json out{{"training", key.training},
           {"batch", key.batch},
           {"length", key.length},
           {"first_of_update", key.first_micro},
           {"last_of_update", key.last_micro},
           {"times_an_update", entry.times_an_update},
           {"nodes", entry.program->graph.nodes.size()},
           {"joined", entry.program->graph.fused},
           {"arena_bytes", entry.program->memory.arena_bytes},
           {"schedule", schedule_json(report, entry)}};
  if (report.device) {
    out["events"] = report.device->streams.at(entry.program).events;
    Json rows = Json::array();
    for (const auto& [node, desc] : pitched_results(*entry.program)) {
      rows.push_back({{"node", node}, {"row", desc.row()}, {"pitch", desc.pitch}});
    }
    out["rows"] = std::move(rows);
    return out;
  }
  out["ms"] = ms(entry.simulation.seconds);
  out["compute_ms"] = ms(entry.simulation.compute);
  out["communication_ms"] = ms(entry.simulation.communication);
  out["exposed_ms"] = ms(entry.simulation.exposed);
  return out;
}

}  // namespace

std::string to_json(const PlanReport& report, const RunSettings& settings) {
  const Plan& plan = report.plan->shards;
  Json programs = Json::array();
  for (const ProgramReport& entry : report.programs) {
    programs.push_back(program_json(report, entry));
  }
  Json all{{"model", settings.options.model},
           {"strategy", strategy_name(plan.strategy)},
           {"world", plan.world},
           {"shard_size", plan.shard_size},
           {"batch_size", settings.batch.batch_size},
           {"grad_accum", settings.batch.grad_accum},
           {"dtypes",
            {{"param", dtype_name(plan.param_dtype)},
             {"reduce", dtype_name(plan.reduce_dtype)},
             {"buffer", dtype_name(settings.options.sharding.buffer_dtype)},
             {"master", dtype_name(DType::kFloat32)},
             {"optimizer_state", name_of(settings.options.optimizer.state_dtype)}}},
           {"machine", machine_json(report)},
           {"units", units_json(report)},
           {"memory", memory_json(report)},
           {"programs", std::move(programs)}};
  const std::vector<int64_t>& parts = report.plan->train_sampler->options().parts;
  if (!parts.empty()) all["batch_of_ranks"] = parts;
  if (!report.plan->candidates.empty()) {
    all["candidates"] = candidates_json(*report.plan);
    all["candidates_rule"] = report.plan->candidates_rule;
  }
  if (!dealt_matrices(*report.plan).empty()) all["newton_schulz"] = orthogonal_json(*report.plan);
  if (!report.device) {
    all["update"] = {{"ms", ms(report.update_seconds)},
                     {"compute_ms", ms(report.update_compute)},
                     {"communication_ms", ms(report.update_communication)},
                     {"exposed_ms", ms(report.update_exposed)}};
  }
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The page of `fsdp-run plan --html`: plan_page.html with the JSON of the plan, which a script in
// the page draws as SVG.

// "</" would end the script element that holds the JSON.
std::string page(const PlanReport& report, const RunSettings& settings) {
  constexpr std::string_view kPlace = "@PLAN_JSON@";
  std::string data;
  for (const char c : to_json(report, settings)) {
    if (c == '/' && data.ends_with('<')) data += '\\';
    data += c;
  }
  return std::string(kPlanPage).replace(kPlanPage.find(kPlace), kPlace.size(), data);
}

}  // namespace ofsdp::runtime
