#include "runtime/report/fit_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/shell_words.h"
#include "kernels/base/text.h"

namespace ofsdp::runtime {

namespace {

using Json = nlohmann::json;

std::string seconds_text(const std::optional<double>& seconds) {
  return seconds ? format_text("{:.4g}", *seconds * 1e3) : "-";
}

// Returns the typed words without --fit SIZE and --json, and with `flags`.
std::string command_with(const std::vector<std::string>& typed,
                         const std::vector<std::string>& flags) {
  std::vector<std::string> words;
  for (size_t i = 0; i < typed.size(); ++i) {
    const std::string& word = typed[i];
    if (word == "--fit") ++i;
    if (word == "--fit" || word == "--json" || word.starts_with("--fit=")) continue;
    words.push_back(word);
  }
  words.insert(words.end(), flags.begin(), flags.end());
  return shell_line(words);
}

}  // namespace

std::string fit_text(const FitAnswer& answer, const PlanReportOptions& asked,
                     const std::vector<std::string>& command) {
  std::string out =
      format_text("a rank needs {} ({} bytes)", readable_bytes(answer.peak_bytes),
                  answer.peak_bytes) +
      (answer.seconds ? format_text(", {:.4g} ms an update", *answer.seconds * 1e3) : "");
  if (answer.runs.empty()) return out + format_text("; it fits {}\n", asked.fit_text);
  out += format_text(
      "; to need at most {}, the smallest change first:\n{:>9} {:>14} {:>8}  {:<11}  command\n",
      asked.fit_text, "peak", "bytes", "ms", "weights");
  for (const FittingRun& run : answer.runs) {
    out += format_text("{:>9} {:>14} {:>8}  {:<11}  {}\n", readable_bytes(run.peak_bytes),
                       run.peak_bytes, seconds_text(run.seconds), name_of(run.effect),
                       escaped(command_with(command, run.flags)));
  }
  return out + format_text("{} plans were made; ms: predicted for an update\n", answer.compiled);
}

std::string fit_json(const FitAnswer& answer, const PlanReportOptions& asked,
                     const std::vector<std::string>& command) {
  const auto ms = [](const std::optional<double>& seconds) {
    return seconds ? Json(*seconds * 1e3) : Json();
  };
  Json runs = Json::array();
  for (const FittingRun& run : answer.runs) {
    runs.push_back({{"flags", run.flags},
                    {"changes", run.changes},
                    {"weights", name_of(run.effect)},
                    {"peak_bytes", run.peak_bytes},
                    {"ms", ms(run.seconds)},
                    {"command", command_with(command, run.flags)}});
  }
  const Json all{{"fit_bytes", *asked.fit},
                 {"peak_bytes", answer.peak_bytes},
                 {"ms", ms(answer.seconds)},
                 {"plans", answer.compiled},
                 {"runs", std::move(runs)}};
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ofsdp::runtime
