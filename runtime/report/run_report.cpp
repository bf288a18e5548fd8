#include "runtime/report/run_report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string_view>
#include <utility>

#include "kernels/base/posix_file.h"
#include "kernels/base/shell_words.h"
#include "kernels/base/text.h"
#include "runtime/report/chart.h"
#include "runtime/report/plan_report.h"
#include "runtime/report/run_page_html.h"

namespace ofsdp::runtime {

namespace {

// Four digits, or all before the point up to 1e9.
std::string number_text(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (size >= 1000 && size < 1e9) return readable_count(std::llround(value));
  return format_text("{:.4g}", value);
}

Chart memory_chart(const RunCurves& run) {
  const uint64_t planned = run.planned_peaks.empty() ? 0 : run.planned_peaks.front();
  const auto most = std::max(static_cast<uint64_t>(run.peak_bytes.largest()), planned);
  const ByteCount count = byte_count(most);
  Chart chart{.title = format_text("Peak memory of rank 0, {}", count.unit),
              .lines = {{"a", "peak", &run.peak_bytes}},
              .from_zero = true,
              .divisor = count.value > 0 ? static_cast<double>(most) / count.value : 1};
  if (planned > 0) chart.limit = static_cast<double>(planned);
  chart.limit_name = "planned";
  return chart;
}

std::string loss_figure(const RunCurves& run) {
  Chart chart{.title = "Loss", .lines = {}, .wide = true};
  if (!run.loss.empty()) chart.lines.push_back({"a", "training", &run.loss});
  const bool evaluated = !run.evaluations.empty() && !run.evaluations[0].curve.empty();
  if (evaluated) chart.lines.push_back({"b", "evaluation", &run.evaluations[0].curve, true});
  return chart.lines.empty() ? "" : figure(chart, run);
}

const Curve* evaluation_named(const RunCurves& run, const std::string& name) {
  const auto found = std::ranges::find(run.evaluations, name, &NamedCurve::name);
  return found == run.evaluations.end() ? nullptr : &found->curve;
}

std::string charts(const RunCurves& run) {
  constexpr size_t kMaxMetrics = 12;
  std::string page = loss_figure(run);
  size_t metrics = 0;
  for (const NamedCurve& metric : run.evaluations) {
    const bool shown = metric.name != "loss" && !metric.name.starts_with("losses/");
    if (!shown || metric.curve.empty() || ++metrics > kMaxMetrics) continue;
    page += figure(
        {.title = "Evaluation: " + metric.name, .lines = {{"b", metric.name, &metric.curve, true}}},
        run);
  }
  for (const NamedCurve& part : run.losses) {
    if (run.losses.size() < 2 || part.curve.empty()) break;
    Chart chart{.title = "Loss of " + part.name, .lines = {{"a", "training", &part.curve}}};
    const Curve* const evaluated = evaluation_named(run, "losses/" + part.name);
    const bool both = evaluated != nullptr && !evaluated->empty();
    if (both) chart.lines.push_back({"b", "evaluation", evaluated, true});
    page += figure(chart, run);
  }
  const auto add = [&](const char* title, const Curve& curve, bool from_zero, bool cuts_peaks) {
    if (curve.empty()) return;
    page += figure({.title = title,
                    .lines = {{"a", "value", &curve}},
                    .from_zero = from_zero,
                    .cuts_peaks = cuts_peaks},
                   run);
  };
  add("Learning rate", run.lr, true, false);
  add("Gradient norm", run.grad_norm, true, true);
  add("Samples per second", run.samples_per_s, true, true);
  add("Time of an update, ms", run.step_ms, true, true);
  if (!run.peak_bytes.empty()) page += figure(memory_chart(run), run);
  return page.empty() ? "" : "<div class=\"charts\">\n" + page + "</div>";
}

// Label and value.
using Facts = std::vector<std::pair<std::string, std::string>>;

Facts facts_of(const RunCurves& run) {
  Facts facts;
  if (run.steps > 0) facts.emplace_back("updates", readable_count(run.steps));
  if (!run.loss.empty()) facts.emplace_back("loss at the end", number_text(run.loss.last()));
  for (const NamedCurve& metric : run.evaluations) {
    if (facts.size() > 6 || metric.curve.empty()) continue;
    const std::string name = metric.name == "loss" ? "evaluation loss" : metric.name;
    facts.emplace_back(name, number_text(metric.curve.buckets().back().mean()));
  }
  const double milliseconds = run.step_ms.empty() ? 0 : run.step_ms.sum();
  if (milliseconds > 0) {
    facts.emplace_back("time of all updates", readable_seconds(milliseconds / 1e3));
    const double samples = run.samples.empty() ? 0 : run.samples.sum();
    facts.emplace_back("samples per second", number_text(samples / milliseconds * 1e3));
  }
  if (run.median_step_ms > 0) {
    facts.emplace_back("median update", number_text(run.median_step_ms) + " ms");
  }
  if (!run.peak_bytes.empty()) {
    const auto peak = static_cast<uint64_t>(run.peak_bytes.largest());
    const uint64_t most = run.rank_peaks.empty() ? peak : *std::ranges::max_element(run.rank_peaks);
    facts.emplace_back("peak memory of a rank", readable_bytes(std::max(peak, most)));
  }
  if (run.skipped > 0) facts.emplace_back("skipped updates", readable_count(run.skipped));
  if (run.undefined > 0) facts.emplace_back("losses not finite", readable_count(run.undefined));
  return facts;
}

std::string facts_list(const Facts& facts) {
  std::string page = "<dl>";
  for (const auto& [label, value] : facts) {
    page += format_text("<div><dt>{}</dt><dd>{}</dd></div>", html(label), html(value));
  }
  return page + "</dl>";
}

std::string evaluations_table(const RunCurves& run) {
  std::string rows;
  for (const NamedCurve& metric : run.evaluations) {
    const Curve& curve = metric.curve;
    if (curve.empty()) continue;
    rows += format_text(
        "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
        html(metric.name), number_text(curve.last()), number_text(curve.least()),
        readable_count(curve.step_of_least()), number_text(curve.largest()),
        readable_count(curve.step_of_largest()));
  }
  if (rows.empty()) return "";
  return "<h2>Evaluations</h2><table><tr><th></th><th class=\"n\">last</th><th "
         "class=\"n\">least</th>"
         "<th class=\"n\">at update</th><th class=\"n\">largest</th><th class=\"n\">at update</th>"
         "</tr>\n" +
         rows + "</table>\n";
}

std::string tables(const RunReport& report, const RunCurves& run) {
  std::string page = evaluations_table(run);
  if (!report.warnings.empty()) {
    page += "<h2>Warnings</h2><ul>\n";
    for (const std::string& warning : report.warnings) page += "<li>" + html(warning) + "</li>\n";
    page += "</ul>\n";
  }
  if (!report.command.empty()) {
    page += "<h2>Command</h2><pre>" + html(report.command) + "</pre>\n";
  }
  if (!report.files.empty()) {
    page += "<h2>Files</h2><table>\n";
    for (const WrittenFile& file : report.files) {
      page += format_text("<tr><td>{}</td><td class=\"quiet\">{}</td></tr>\n", html(file.path),
                          html(file.what.empty() ? "the trained file" : file.what));
    }
    page += "</table>\n";
  }
  if (!report.configuration.empty()) {
    page += "<details><summary>Configuration</summary><pre>" + html(report.configuration) +
            "</pre></details>\n";
  }
  if (!report.versions.empty()) {
    page += "<p class=\"quiet\">" + html(report.versions) + "</p>\n";
  }
  return page;
}

std::string state_text(const RunReport& report, const RunCurves& run) {
  std::string text = report.state;
  if (text.empty() && run.steps > 0) {
    text = !run.ended          ? "not finished"
           : run.stopped_early ? "ended early: the evaluation got no better"
                               : "finished";
  }
  if (!report.model.empty()) text = report.model + (text.empty() ? "" : ": ") + text;
  if (!run.resumed_at.empty()) {
    text += format_text("; resumed {}", plural(std::ssize(run.resumed_at), "time"));
  }
  return text;
}

// Replaces @NAME@ in the template, and nothing in the values.
std::string filled(std::string_view page,
                   std::initializer_list<std::pair<std::string_view, std::string>> values) {
  std::string text;
  while (!page.empty()) {
    const size_t at = std::min(page.find('@'), page.size());
    text += page.substr(0, at);
    page.remove_prefix(at);
    const auto* const found = std::ranges::find_if(
        values, [&](const auto& value) { return page.starts_with(value.first); });
    if (found != values.end()) {
      text += found->second;
      page.remove_prefix(found->first.size());
    } else if (!page.empty()) {
      text += '@';
      page.remove_prefix(1);
    }
  }
  return text;
}

std::string file_text(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Warnings and the line about a stop, in a run's log.
void read_log(const std::string& path, RunReport& report) {
  constexpr std::string_view kWarning = "warning: ", kStopped = "stopped at update ";
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t warning = line.find(kWarning), stopped = line.find(kStopped);
    if (warning != std::string::npos && line.find("fsdp-run") == 0) {
      report.warnings.push_back(line.substr(warning + kWarning.size()));
    } else if (stopped != std::string::npos && report.state.empty()) {
      report.state = line.substr(stopped, line.find(';', stopped) - stopped);
    }
  }
}

std::vector<WrittenFile> files_in(const std::string& folder) {
  std::vector<WrittenFile> files;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code unknown;
    const bool is_file = at->is_regular_file(unknown) && !name.starts_with('.');
    if (is_file && name != "report.html") {
      files.push_back({name, readable_bytes(at->file_size(unknown))});
    } else if (at->is_directory(unknown)) {
      files.push_back({name + "/", "a folder"});
    }
  }
  std::ranges::sort(files, {}, &WrittenFile::path);
  return files;
}

}  // namespace

std::string own_command() {
  std::vector<std::string> words{"fsdp-run"};
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string word;
  std::getline(file, word, '\0');  // the program's path
  while (std::getline(file, word, '\0')) words.push_back(word);
  return shell_line(words);
}

std::string run_page(const RunReport& report, const RunCurves& curves) {
  const std::string title = report.title.empty() ? "fsdp-run" : report.title;
  return filled(kRunPage, {{"@TITLE@", html(title)},
                           {"@STATE@", html(state_text(report, curves))},
                           {"@FACTS@", facts_list(facts_of(curves))},
                           {"@CHARTS@", charts(curves)},
                           {"@TABLES@", tables(report, curves)}});
}

Status write_run_report(const std::string& path, const RunReport& report, const RunCurves& curves) {
  return write_page(path, run_page(report, curves));
}

Status write_run_report(const std::string& folder, RunReport known, const std::string& metrics) {
  const std::string rows = metrics.empty() ? join_path(folder, "metrics.jsonl") : metrics;
  OFSDP_ASSIGN_OR_RETURN(const RunCurves curves, read_curves(rows));
  const auto take = [&](std::string& member, const char* name) {
    if (member.empty()) member = file_text(join_path(folder, name));
  };
  take(known.configuration, "config.yaml");
  take(known.command, "command.txt");
  std::error_code error;
  const auto whole = std::filesystem::weakly_canonical(folder, error);
  if (known.title.empty()) known.title = whole.filename().string();
  if (known.warnings.empty()) read_log(join_path(folder, "log.txt"), known);
  if (known.files.empty()) known.files = files_in(folder);
  return write_run_report(join_path(folder, "report.html"), known, curves);
}

}  // namespace ofsdp::runtime
