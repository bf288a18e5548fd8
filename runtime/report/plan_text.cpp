// The text of `fsdp-run plan`.
#include <algorithm>
#include <numeric>

#include "kernels/base/escaped.h"
#include "kernels/base/readable.h"
#include "kernels/cpu/parallel.h"
#include "runtime/report/orthogonal_table.h"
#include "runtime/report/plan_report.h"

namespace ofsdp::runtime {
namespace {

constexpr size_t kUnitsShown = 5;

std::string peak_text(const PlanReport& report) {
  const size_t peak = report.plan->memory.planned_bytes();
  const std::string& node = report.peak.node;
  std::string out =
      format_text("\nat the peak of {} bytes ({}), in {}\n", peak, readable_bytes(peak),
                  node.empty() ? "the first step" : escaped(node));
  for (const PeakShare& share : report.peak.shares) {
    if (share.bytes == 0) continue;
    out += format_text("{:<36} {:>9} {:>14} {:>6.1f} %\n", share.label, readable_bytes(share.bytes),
                       share.bytes,
                       100.0 * static_cast<double>(share.bytes) / static_cast<double>(peak));
  }
  return out;
}

std::string machine_text(const PlanReport& report) {
  const Machine& m = report.machine;
  std::string where = format_text("this machine, {} rank{} of {} thread{}", report.plan->plan.world,
                                  report.plan->plan.world == 1 ? "" : "s", pool_threads(),
                                  pool_threads() == 1 ? "" : "s");
  if (m.topology) {
    where = format_text("{} host{} of {} ranks, computation {} times as fast as here",
                        m.topology->hosts, m.topology->hosts == 1 ? "" : "s",
                        m.topology->ranks_per_host, m.topology->compute_factor);
  }
  const std::string products =
      m.rates.products > 0 ? format_text(", Newton-Schulz {:.3g} GFLOP/s", m.rates.products * 1e-9)
                           : "";
  return format_text(
      "\npredicted for {}: {} kernels measured, {} estimated, copying {:.3g} GB/s{}\n", where,
      m.kernels.measured, m.kernels.estimated, m.rates.copy * 1e-9, products);
}

std::string update_text(const PlanReport& report) {
  std::string out = format_text(
      "an update {:.4g} ms: computation {:.4g} ms, communication {:.4g} ms, of which exposed "
      "{:.4g} "
      "ms\n",
      report.update_seconds * 1e3, report.update_compute * 1e3, report.update_communication * 1e3,
      report.update_exposed * 1e3);
  std::vector<size_t> order(report.exposed_of_unit.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(),
                           [&](size_t u) { return report.exposed_of_unit[u]; });
  for (size_t i = 0; i < std::min(order.size(), kUnitsShown); ++i) {
    const size_t u = order[i];
    if (report.exposed_of_unit[u] <= 0) break;
    out += format_text("waits {:.3g} ms for unit {} ({})\n", report.exposed_of_unit[u] * 1e3, u,
                       escaped(report.plan->plan.units[u].name));
  }
  return out;
}

std::string name_of(const ProgramKey& key) {
  return format_text("{} of {} samples{}{}", key.training ? "training" : "evaluation", key.batch,
                     key.first_micro ? "" : ", not the first of an update",
                     key.last_micro ? "" : ", not the last");
}

std::string head(const PlanReport& report, const ProgramReport& entry) {
  const MemoryPlan& memory = entry.program->memory;
  std::string out = format_text(
      "\n{}: {} nodes, arena {} bytes, most at step {} (activations {}, gathered "
      "{}, workspace {})",
      name_of(*entry.key), entry.program->graph.nodes.size(), memory.arena_bytes, memory.peak_step,
      memory.peak_activations, memory.peak_gathered, memory.peak_workspace);
  if (report.device) {
    return out + "\n" + streams_line(*report.device, *entry.program) + rows_line(*entry.program);
  }
  return out + format_text(", {:.4g} ms, exposed {:.4g} ms\n", entry.simulation.seconds * 1e3,
                           entry.simulation.exposed * 1e3);
}

// The end of each line of the schedule: the time of its step, or of a device its stream.
std::vector<std::string> remarks(const PlanReport& report, const ProgramReport& entry) {
  std::vector<std::string> list(entry.program->schedule.steps.size());
  if (report.device) {
    const StreamPlan& streams = report.device->streams.at(entry.program);
    for (size_t s = 0; s < list.size(); ++s) list[s] = stream_text(streams.steps[s]);
    return list;
  }
  std::vector<double> took(list.size(), 0);
  for (const SimulatedStep& s : entry.simulation.steps) {
    took[static_cast<size_t>(s.step)] += s.end - s.begin;
  }
  for (size_t s = 0; s < list.size(); ++s) {
    if (took[s] > 0) list[s] = format_text("  {:.4f} ms", took[s] * 1e3);
  }
  return list;
}

std::string schedule_text(const PlanReport& report, const ProgramReport& entry) {
  const std::string plain = text(entry.program->schedule, entry.program->graph);
  std::string out;
  size_t begin = 0;
  for (const std::string& remark : remarks(report, entry)) {
    const size_t end = plain.find('\n', begin);
    out.append(plain, begin, end - begin);
    out += remark + '\n';
    begin = end + 1;
  }
  return out;
}

}  // namespace

std::string operations_text(const RunPlan& plan) {
  std::string out;
  for (const auto& [key, program] : plan.programs) {
    out += format_text("{}{}\n", out.empty() ? "" : "\n", name_of(key));
    out += text(lower(program, lowering(plan, 0)));
  }
  return out;
}

std::string text(const PlanReport& report) {
  std::string out = "units\n" + text(report.plan->plan) + "\nmemory of this rank, bytes\n" +
                    text(report.plan->memory) + peak_text(report) + orthogonal_table(*report.plan);
  out += report.device ? text(*report.device) : machine_text(report) + update_text(report);
  for (const ProgramReport& entry : report.programs) {
    out += head(report, entry) + schedule_text(report, entry);
  }
  return out;
}

}  // namespace ofsdp::runtime
