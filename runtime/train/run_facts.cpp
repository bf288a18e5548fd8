#include "runtime/train/run_facts.h"

#include "importer/passes/decoder_past.h"
#include "kernels/base/escaped.h"
#include "kernels/cpu/parallel.h"
#include "runtime/report/plan_report.h"
#include "runtime/train/run_lines.h"

namespace ofsdp::runtime {
namespace {

// "KIND:PREDICTION:LABELS the mean over samples; ...": what each loss is the mean or the sum of.
std::string loss_text(const PlannedRun& run) {
  const bool global = run.settings.options.loss.mean == LossMean::kGlobal;
  const char* const mean = global ? "the mean" : "the ranks' mean of means";
  const std::vector<LossSpec>& losses = run.setup.source->settings().losses;
  std::string text;
  for (size_t i = 0; i < run.setup.counts.size(); ++i) {
    const LossCount& count = run.setup.counts[i];
    if (i > 0) text += "; ";
    if (losses.size() > 1) text += escaped(losses[i].said) + " ";
    const std::string over =
        count.by_label ? format_text("the labels of '{}'", escaped(count.labels)) : "samples";
    text +=
        count.sum ? format_text("the sum over {}", over) : format_text("{} over {}", mean, over);
  }
  return text;
}

bool is_float32(const ShardingOptions& s) {
  return s.param_dtype == DType::kFloat32 && s.reduce_dtype == DType::kFloat32 &&
         s.buffer_dtype == DType::kFloat32 && s.matmul_precision == MatmulPrecision::kHighest;
}

// Adds the lines of `text`, which may have none.
void add_lines(const std::string& text, std::vector<std::string>& lines) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(escaped(text.substr(begin, end - begin)));
    begin = end + 1;
  }
}

std::vector<std::string> notices(const PlannedRun& run, bool all, bool exact) {
  const Options& options = run.settings.options;
  std::vector<std::string> lines;
  add_lines(past_line(run.setup.fed_empty), lines);
  add_lines(run.setup.nhwc_notice, lines);
  add_lines(teacher_line(run.setup), lines);
  add_lines(run.device_notice, lines);
  add_lines(offload_line(run.plan, run.settings, exact), lines);
  if (all || !is_float32(options.sharding)) {
    add_lines(dtypes_lines(options, run.plan.device != nullptr), lines);
  }
  add_lines(slices_line(run.settings.batch), lines);
  add_lines(run.plan.choice, lines);
  return lines;
}

}  // namespace

OpeningFacts opening_facts(const PlannedRun& run, const std::vector<std::string>& settings) {
  const Graph& graph = run.setup.graph;
  OpeningFacts facts;
  facts.model = escaped(run.settings.options.model);
  for (const Parameter& p : graph.parameters) {
    if (p.of_teacher) continue;
    ++facts.tensors;
    if (!p.trained) continue;
    ++facts.trained_tensors;
    facts.trained_numbers += graph.value(p.value).desc.shape.numel();
  }
  facts.loss = loss_text(run);
  facts.settings = settings;
  for (const auto& [rule, count] : run.plan.programs.rbegin()->second.graph.fused) {
    facts.fused.push_back(format_text("{} {}", rule, count));
  }
  facts.wrap_notice = escaped(run.plan.plan.notice);
  facts.notices = notices(run, /*all=*/false, /*exact=*/false);
  for (const PeakShare& share : peak_of(run.plan).shares) {
    if (std::string_view(share.key) != "unused") facts.memory.push_back({share.label, share.bytes});
  }
  facts.strategy = strategy_name(run.plan.plan.strategy);
  facts.ranks = run.communicator.size();
  facts.threads = pool_threads();
  facts.units = static_cast<int64_t>(run.plan.plan.units.size());
  facts.planned_bytes = run.plan.memory.planned_bytes();
  return facts;
}

std::string opening_tables(const PlannedRun& run) {
  const RunPlan& plan = run.plan;
  std::string text = run.settings.configuration + trained_table(run.setup.graph);
  if (!plan.plan.notice.empty()) text += escaped(plan.plan.notice) + "\n";
  text += "loss: " + loss_text(run) + "\n" + fused_line(plan);
  for (const std::string& line : notices(run, /*all=*/true, /*exact=*/true)) text += line + "\n";
  return text;
}

int64_t tokens_a_sample(const ModelSetup& setup) {
  const LossCount& count = setup.counts.front();
  if (!count.by_label) return 1;
  const auto& rows = setup.source->settings().rows;
  const auto row = rows.find(count.labels);
  const bool line = row != rows.end() && row->second.rank() == 1;
  return line ? std::max<int64_t>(row->second.numel(), 1) : 1;
}

}  // namespace ofsdp::runtime
