#include "runtime/log/metrics.h"

#include <fcntl.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/posix_file.h"
#include "runtime/log/row_log.h"
#include "runtime/log/run_curves.h"

namespace ofsdp::runtime {

namespace {

constexpr MetricTraits kMetrics[] = {
#define METRIC(name, Kind, ...) {__VA_ARGS__},
#include "runtime/log/metrics.inc"
};

}  // namespace

const MetricTraits& metric_traits(MetricKind kind) { return kMetrics[static_cast<size_t>(kind)]; }

bool lower_is_better(std::span<const MetricSpec> metrics, std::string_view name) {
  const auto found = std::ranges::find(metrics, name, &MetricSpec::name);
  return found == metrics.end() || metric_traits(found->kind).lower_is_better;
}

namespace {

// ,"key":value with nine digits, enough for a float32
void add_float(LineBuffer& line, const char* key, double value) {
  line.add(",\"{}\":", key);
  std::isfinite(value) ? line.add("{:.9g}", value) : line.add("null");
}
// The shortest text that reads back as the same double.
void add_number(LineBuffer& line, double value) {
  std::isfinite(value) ? line.add("{}", value) : line.add("null");
}

// ,"key":value
void add_double(LineBuffer& line, const char* key, double value) {
  line.add(",\"{}\":", key);
  add_number(line, value);
}

void add_text(LineBuffer& line, std::string_view text) { line.add("{}", text); }
void add_text(std::string& line, std::string_view text) { line += text; }

// "name": with the name escaped, since models are not trusted
template <typename Line>
void add_name(Line& line, std::string_view name) {
  add_text(line, "\"");
  for (const char& c : name) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20) {
      LineBuffer control;
      control.add("\\u{:04x}", static_cast<int>(code));
      add_text(line, control.view());
      continue;
    }
    if (c == '"' || c == '\\') add_text(line, "\\");
    add_text(line, {&c, 1});
  }
  add_text(line, "\":");
}

std::string_view whole(const LineBuffer& line) {
  OFSDP_CHECK(!line.cut_off(), "a metrics line of more than {} bytes", line.view().size());
  return line.view();
}

// ,"losses":{"name":value, ...}
void add_losses(LineBuffer& line, std::span<const MetricValue> losses) {
  if (losses.empty()) return;
  line.add(",\"losses\":");
  for (const MetricValue& loss : losses) {
    line.add("{}", &loss == &losses.front() ? "{" : ",");
    add_name(line, loss.name);
    const double value = loss.value.value_or(std::nan(""));
    std::isfinite(value) ? line.add("{:.9g}", value) : line.add("null");
  }
  line.add("}}");
}

// ,"watch":{"grad_norm":{"unit":value, ...}, ...}; grows with the units.
void add_watch(std::string& line, std::span<const WatchedUnit> units) {
  line += ",\"watch\":";
  for (const NormKind& kind : kNormKinds) {
    line += &kind == std::begin(kNormKinds) ? "{\"" : ",\"";
    line += kind.key;
    line += "\":";
    for (const WatchedUnit& unit : units) {
      LineBuffer number;
      const auto norm = static_cast<double>(unit.norms.*kind.norm);
      std::isfinite(norm) ? number.add("{:.9g}", norm) : number.add("null");
      line += &unit == &units.front() ? "{" : ",";
      add_name(line, unit.name);
      line += number.view();
    }
    line += "}";
  }
  line += "}";
}

std::string number_or_null(double value) {
  return std::isfinite(value) ? format_text("{}", value) : std::string("null");
}

}  // namespace

Result<MetricsWriter> MetricsWriter::open(const std::string& path, Mode mode) {
  MetricsWriter writer;
  if (path.empty()) return writer;
  const int how = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
  writer.fd_ = UniqueFd(::open(path.c_str(), how | (mode == Mode::kTruncate ? O_TRUNC : 0), 0666));
  if (!writer.fd_.valid()) {
    return input_error("--metrics {}: cannot write the file: {}", path, std::strerror(errno));
  }
  writer.path_ = path;
  writer.mode_ = mode;
  return writer;
}

MetricsWriter::MetricsWriter() = default;
MetricsWriter::MetricsWriter(MetricsWriter&& other) noexcept = default;
MetricsWriter& MetricsWriter::operator=(MetricsWriter&& other) noexcept = default;
MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::also_to_caller() {
  const char* const number = std::getenv("OFSDP_ROWS_FD");
  if (number != nullptr && *number != 0) caller_ = std::atoi(number);
}

Status MetricsWriter::write_line(std::string_view line) {
  // If the caller has stopped reading, the run goes on.
  if (caller_ >= 0 && write_text(caller_, line) != 0) caller_ = -1;
  const int error = fd_.valid() ? write_text(fd_.get(), line) : 0;
  if (error == 0) return ok_status();
  return fault("--metrics {}: writing failed: {}", path_, std::strerror(error));
}

Status MetricsWriter::close_line(std::string_view line) {
  OFSDP_RETURN_IF_ERROR(write_line(line));
  return write_logs(line);
}

Status MetricsWriter::step(const StepRow& row) {
  if (curves_ != nullptr) curves_->step(row);
  LineBuffer line;
  line.add("{{\"kind\":\"step\",\"step\":{},\"epoch\":{}", row.step, row.epoch);
  add_float(line, "loss", row.loss);
  add_float(line, "grad_norm", row.grad_norm);
  add_double(line, "lr", row.lr);
  add_float(line, "step_ms", row.step_ms);
  add_float(line, "samples_per_s", row.samples_per_s);
  line.add(",\"peak_bytes\":{}", row.peak_bytes);
  if (row.skipped) line.add(",\"skipped\":true");
  add_losses(line, row.losses);
  if (row.watch.empty()) {
    line.add("}}\n");
    return close_line(whole(line));
  }
  line_ = whole(line);
  add_watch(line_, row.watch);
  line_ += "}\n";
  return close_line(line_);
}

Status MetricsWriter::eval(const EvalRow& row) {
  if (curves_ != nullptr) curves_->eval(row);
  LineBuffer line;
  line.add("{{\"kind\":\"eval\",\"step\":{},\"epoch\":{}", row.step, row.epoch);
  add_float(line, "loss", row.loss);
  for (const MetricValue& metric : row.metrics) {
    line.add(",");
    add_name(line, metric.name);
    add_number(line, metric.value.value_or(std::nan("")));
  }
  add_losses(line, row.losses);
  line.add("}}\n");
  return close_line(whole(line));
}

Status MetricsWriter::end(const EndRow& row) {
  if (curves_ != nullptr) curves_->end(row);
  const std::string line = format_text(
      "{{\"kind\":\"end\",\"steps\":{},\"seconds\":{},\"median_step_ms\":{},"
      "\"peak_bytes\":[{}],\"planned_peak_bytes\":[{}]{}{}}}\n",
      row.steps, number_or_null(row.seconds), number_or_null(row.median_step_ms),
      joined(row.peak_bytes, ","), joined(row.planned_peak_bytes, ","),
      row.stopped_early ? ",\"stopped\":\"early\"" : "",
      row.skipped > 0 ? format_text(",\"skipped\":{}", row.skipped) : "");
  OFSDP_RETURN_IF_ERROR(write_line(line));
  return write_logs(line);
}

Status MetricsWriter::add_log(const std::string& log, const std::vector<std::string>& metrics,
                              Mode mode, const LoggedRun& run) {
  OFSDP_ASSIGN_OR_RETURN(auto made, open_row_log(log, {.metrics = metrics,
                                                       .truncates = mode == Mode::kTruncate,
                                                       .number = logs_.size(),
                                                       .run = run}));
  logs_.push_back(std::move(made));
  return ok_status();
}

Status MetricsWriter::add_log(const std::string& log, const std::vector<std::string>& metrics,
                              Mode mode) {
  return add_log(log, metrics, mode, LoggedRun());
}

Status MetricsWriter::write_logs(std::string_view line) {
  if (logs_.empty()) return ok_status();
  const auto row = nlohmann::json::parse(line);
  for (const auto& log : logs_) OFSDP_RETURN_IF_ERROR(log->write(row));
  return ok_status();
}

// A file that cannot be read has no rows to begin with.
void MetricsWriter::keep_curves() {
  curves_ = std::make_unique<RunCurves>();
  if (path_.empty() || mode_ == Mode::kTruncate) return;
  auto earlier = read_curves(path_);
  if (earlier.ok()) *curves_ = *std::move(earlier);
  curves_->resume();
}

}  // namespace ofsdp::runtime
