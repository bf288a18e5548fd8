// The text of `fsdp-run plan`: the summary, the tables and the schedule.
#include <algorithm>
#include <map>
#include <numeric>

#include "kernels/base/text.h"
#include "kernels/core/op_def.h"
#include "kernels/cpu/parallel.h"
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
  std::string where = format_text(
      "this machine, {} rank{} of {} thread{}", report.plan->shards.world,
      report.plan->shards.world == 1 ? "" : "s", pool_threads(), pool_threads() == 1 ? "" : "s");
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
                       escaped(report.plan->shards.units[u].name));
  }
  return out;
}

std::string name_of(const ProgramKey& key) {
  const std::string cut = key.length > 0 ? format_text(" cut to {} entries", key.length) : "";
  return format_text("{} of {} samples{}{}{}", key.training ? "training" : "evaluation", key.batch,
                     cut, key.first_micro ? "" : ", not the first of an update",
                     key.last_micro ? "" : ", not the last");
}

std::string head(const PlanReport& report, const ProgramReport& entry) {
  const ArenaMap& memory = entry.program->memory;
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

// Returns a suffix for each line of the schedule: the step's time, or the stream on a device.
std::vector<std::string> remarks(const PlanReport& report, const ProgramReport& entry) {
  std::vector<std::string> list(entry.program->schedule.steps.size());
  if (report.device) {
    const StreamSchedule& streams = report.device->streams.at(entry.program);
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

std::string steps_text(const PlanReport& report, const ProgramReport& entry) {
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

std::string schedule_text(const PlanReport& report) {
  std::string out;
  for (const ProgramReport& entry : report.programs) {
    out += head(report, entry) + steps_text(report, entry);
  }
  return out;
}

std::string candidates_text(const CompiledRun& plan) {
  if (plan.candidates.empty()) return "";
  size_t widest = 5;
  for (const Candidate& c : plan.candidates) widest = std::max(widest, c.flags.size());
  const auto row = [widest](std::string flags, auto... cells) {
    flags.resize(widest, ' ');
    return flags + format_text(" {:>5} {:>13} {:>10} {:>9} {:>14} {:>9}  {}\n", cells...);
  };
  std::string out = plan.candidates_rule +
                    row("flags", "units", "largest unit", "recomputed", "peak", "bytes", "ms", "");
  for (const Candidate& c : plan.candidates) {
    const char* const verdict = c.chosen ? "taken" : c.fits ? "" : "too large";
    out += row(c.flags, c.units, readable_count(c.largest_unit), c.recompute_level,
               readable_bytes(c.bytes), c.bytes,
               c.seconds > 0 ? format_text("{:.4g}", c.seconds * 1e3) : "-", verdict);
  }
  return out + "\n";
}

std::string operations_text(const CompiledRun& plan) {
  std::string out;
  for (const auto& [key, program] : plan.programs) {
    out += format_text("{}{}\n", out.empty() ? "" : "\n", name_of(key));
    out += text(lower(program, lowering(plan, 0)));
  }
  return out;
}

std::string text(const PlanReport& report, bool steps) {
  std::string out = candidates_text(*report.plan) + "units\n" + text(report.plan->shards) +
                    "\nmemory of this rank, bytes\n" + text(report.plan->memory) +
                    peak_text(report) + orthogonal_table(*report.plan);
  out += report.device ? text(*report.device) : machine_text(report) + update_text(report);
  if (steps) return out + schedule_text(report);
  for (const ProgramReport& entry : report.programs) out += head(report, entry);
  return out;
}

// The summary.

namespace {

constexpr size_t kSharesShown = 6, kNoticesShown = 3, kCostsShown = 4;

std::string head_text(const PlanReport& report, const PlanFacts& facts, const BatchSizes& batch) {
  const Plan& plan = report.plan->shards;
  return format_text("{}: trains {} of {}, {} numbers; loss: {}\n", facts.model,
                     facts.trained_tensors, plural(facts.tensors, "tensor"),
                     readable_count(facts.trained_numbers), facts.loss) +
         format_text("{}, {}, {}; batch {} x {} forward{} = {} samples an update\n",
                     strategy_name(plan.strategy), plural(plan.world, "rank"),
                     plural(std::ssize(plan.units), "unit"), batch.batch_size, batch.grad_accum,
                     batch.grad_accum == 1 ? "" : "s", batch.global_batch_size);
}

std::string notice_lines(const std::vector<std::string>& notices) {
  std::string out;
  for (size_t i = 0; i < std::min(notices.size(), kNoticesShown); ++i) out += notices[i] + "\n";
  return out;
}

std::string share_line(const char* label, size_t bytes, size_t peak) {
  return format_text("  {:<34} {:>9} {:>14} {:>6.1f} %\n", label, readable_bytes(bytes), bytes,
                     100.0 * static_cast<double>(bytes) / static_cast<double>(peak));
}

std::string shares_text(const PlanReport& report) {
  const size_t peak = report.plan->memory.planned_bytes();
  std::vector<PeakShare> shares = report.peak.shares;
  std::ranges::stable_sort(shares, std::greater(), &PeakShare::bytes);
  const std::string& node = report.peak.node;
  std::string out =
      format_text("at the peak of {} bytes ({}) a rank, in {}\n", peak, readable_bytes(peak),
                  node.empty() ? "the first step" : escaped(node));
  size_t rest = peak;
  for (size_t i = 0; i < std::min(shares.size(), kSharesShown) && shares[i].bytes > 0; ++i) {
    out += share_line(shares[i].label, shares[i].bytes, peak);
    rest -= shares[i].bytes;
  }
  return rest == 0 ? out : out + share_line("all others", rest, peak);
}

std::string name_of_cost(const StepProgram& program, int s) {
  const Step& step = program.schedule.steps[static_cast<size_t>(s)];
  if (traits(step.kind).subject != StepSubject::kNode) return step_name(step.kind);
  return program.graph.nodes[static_cast<size_t>(step.index)].op->full_name();
}

// Returns "most time: Gemm 45 %, Softmax 12 %, ...": by operator, of an update's computation.
std::string costs_text(const PlanReport& report) {
  std::map<std::string, double> seconds;
  for (const ProgramReport& entry : report.programs) {
    for (const SimulatedStep& s : entry.simulation.steps) {
      if (s.stream != Stream::kCompute) continue;
      seconds[name_of_cost(*entry.program, s.step)] +=
          static_cast<double>(entry.times_an_update) * (s.end - s.begin);
    }
  }
  seconds["waiting for communication"] = report.update_exposed;
  std::vector<std::pair<std::string, double>> order(seconds.begin(), seconds.end());
  std::ranges::stable_sort(order, std::greater(), [](const auto& cost) { return cost.second; });
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(order.size(), kCostsShown); ++i) {
    const double share = 100 * order[i].second / std::max(report.update_seconds, 1e-12);
    if (share >= 1) parts.push_back(format_text("{} {:.0f} %", escaped(order[i].first), share));
  }
  return parts.empty() ? "" : format_text("most time: {}\n", joined(parts, ", "));
}

std::string times_text(const PlanReport& report, const BatchSizes& batch) {
  if (report.device) return "no times: nothing measures GPUs yet\n";
  const auto& hosts = report.machine.topology;
  const std::string where = hosts ? format_text(" for {} of {}", plural(hosts->hosts, "host"),
                                                plural(hosts->ranks_per_host, "rank"))
                                  : "";
  const double seconds = std::max(report.update_seconds, 1e-12);
  return format_text(
             "predicted{}: {:.4g} ms an update, {} samples/s; of it {:.4g} ms wait for "
             "communication\n",
             where, report.update_seconds * 1e3,
             readable_number(static_cast<double>(batch.global_batch_size) / seconds),
             report.update_exposed * 1e3) +
         costs_text(report);
}

}  // namespace

std::string summary_text(const PlanReport& report, const PlanFacts& facts,
                         const BatchSizes& batch) {
  const std::string verdict = facts.verdict.empty() ? "" : facts.verdict + "\n";
  return head_text(report, facts, batch) + notice_lines(facts.notices) + shares_text(report) +
         times_text(report, batch) + verdict +
         "more: --verbose (units and tables), --schedule (steps), --explain (kernels), --html "
         "FILE, --json\n";
}

}  // namespace ofsdp::runtime
