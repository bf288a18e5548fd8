// The block after the last step, and the objects of --json.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/text.h"
#include "runtime/log/screen.h"

namespace ofsdp::runtime {

namespace {

using ResultJson = nlohmann::json;

constexpr size_t kPeaksShown = 4;  // ranks

std::string peak_line(const std::vector<uint64_t>& peaks) {
  if (peaks.empty()) return "";
  if (peaks.size() == 1) return "peak memory: " + readable_bytes(peaks[0]) + "\n";
  if (peaks.size() <= kPeaksShown) {
    std::vector<std::string> each;
    for (const uint64_t bytes : peaks) each.push_back(readable_bytes(bytes));
    return format_text("peak memory: {} (ranks 0 to {})\n", joined(each, ", "), peaks.size() - 1);
  }
  const auto [least, most] = std::ranges::minmax_element(peaks);
  return format_text("peak memory: {} (rank {}, which has most) to {} (rank {})\n",
                     readable_bytes(*most), most - peaks.begin(), readable_bytes(*least),
                     least - peaks.begin());
}

std::string skipped_text(const ClosingFacts& facts) {
  if (facts.skipped == 0) return "";
  return format_text(" ({} skipped: gradients in float16 were not finite)", facts.skipped);
}

std::string evaluation_line(const EvaluationFacts& evaluation) {
  std::vector<std::string> parts;
  parts.push_back(evaluation.row().has_label() ? format_text("loss {:.4f}", evaluation.loss)
                                               : "no label");
  for (const MetricValue& metric : evaluation.metrics) {
    if (metric.value)
      parts.push_back(format_text("{} {:.4f}", escaped(metric.name), *metric.value));
  }
  return format_text("evaluation after step {}: {}\n", evaluation.step, joined(parts, ", "));
}

ResultJson finite_or_null(double value) {
  return std::isfinite(value) ? ResultJson(value) : ResultJson();
}

ResultJson values_json(std::span<const MetricValue> values) {
  ResultJson object = ResultJson::object();
  for (const MetricValue& metric : values) {
    object[metric.name] = metric.value ? finite_or_null(*metric.value) : ResultJson();
  }
  return object;
}

// Files by kind: {"model": PATH, "metrics": PATH}. Several of a kind are a list.
ResultJson files_json(const std::vector<WrittenFile>& files) {
  ResultJson object = ResultJson::object();
  for (const WrittenFile& file : files) {
    ResultJson& place = object[file.what.empty() ? "model" : file.what];
    if (place.is_string()) place = ResultJson::array({place});
    if (place.is_array()) {
      place.push_back(file.path);
    } else {
      place = file.path;
    }
  }
  return object;
}

std::string json_line(const ResultJson& object) {
  return escaped_json(object.dump(-1, ' ', false, ResultJson::error_handler_t::replace)) + "\n";
}

}  // namespace

void EvaluationFacts::take(const EvalRow& row) {
  step = row.step;
  loss = row.loss;
  metrics.assign(row.metrics.begin(), row.metrics.end());
  losses.assign(row.losses.begin(), row.losses.end());
  bad_rank = row.bad_rank;
}

std::string closing_text(const ClosingFacts& facts) {
  const double tokens = static_cast<double>(facts.tokens_a_sample);
  std::string text = format_text(
      "done: {}{}{} in {}, {} {}/s during updates, {} ms an update (median)\n",
      plural(facts.updates, "update"), skipped_text(facts),
      facts.stopped_early ? ", stopped early," : "", readable_seconds(facts.seconds),
      readable_number(facts.samples_per_s * tokens),
      facts.tokens_a_sample > 1 ? "tokens" : "samples", readable_number(facts.median_step_ms));
  text += peak_line(facts.peak_bytes);
  if (!facts.exposed.empty()) text += facts.exposed + "\n";
  return facts.evaluation ? text + evaluation_line(*facts.evaluation) : text;
}

std::string written_text(const std::vector<WrittenFile>& files) {
  std::string text;
  for (const WrittenFile& file : files) {
    text += format_text("wrote {}{}\n", escaped(file.path),
                        file.what.empty() ? "" : format_text(" ({})", file.what));
  }
  return text;
}

std::string quiet_text(const ClosingFacts& facts) {
  LineBuffer text;
  if (facts.updates > 0) {
    add_log_line(
        text, {.epoch = facts.epoch, .step = facts.step, .total = facts.total, .loss = facts.loss});
    text.add("\n");
  }
  if (facts.evaluation) {
    add_eval_line(text, facts.evaluation->row());
    text.add("\n");
  }
  return std::string(text.view());
}

std::string training_json(const std::string& model, const ClosingFacts& facts,
                          const std::vector<WrittenFile>& files) {
  ResultJson object{
      {"command", "train"},
      {"model", model},
      {"updates", facts.updates},
      {"step", facts.step},
      {"epochs", facts.epochs ? finite_or_null(*facts.epochs) : ResultJson()},
      {"loss", finite_or_null(facts.loss)},
      {"eval", nullptr},
      {"samples_per_s", finite_or_null(facts.samples_per_s)},
      {"step_ms", finite_or_null(facts.median_step_ms)},
      {"peak_bytes", facts.peak_bytes.empty() ? 0 : std::ranges::max(facts.peak_bytes)},
      {"seconds", finite_or_null(facts.seconds)},
      {"skipped", facts.skipped},
      {"stopped", facts.stopped},
      {"stopped_early", facts.stopped_early},
      {"files", files_json(files)}};
  if (facts.evaluation) {
    ResultJson& eval = object["eval"];
    eval = values_json(facts.evaluation->metrics);
    eval["loss"] = finite_or_null(facts.evaluation->loss);
    eval["step"] = facts.evaluation->step;
    if (!facts.evaluation->losses.empty()) eval["losses"] = values_json(facts.evaluation->losses);
  }
  return json_line(object);
}

std::string evaluation_json(const std::string& model, const EvalRow& row, int64_t samples) {
  ResultJson object{{"command", "eval"},
                    {"model", model},
                    {"step", row.step},
                    {"loss", finite_or_null(row.loss)},
                    {"metrics", values_json(row.metrics)},
                    {"samples", samples}};
  if (!row.losses.empty()) object["losses"] = values_json(row.losses);
  return json_line(object);
}

}  // namespace ofsdp::runtime
