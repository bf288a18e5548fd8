#include "runtime/log/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/base/write_text.h"

namespace ofsdp::runtime {
namespace {

// ,"key":value with the nine digits of a float32
void add_float(LineBuffer& line, const char* key, double value) {
  line.add(",\"{}\":", key);
  std::isfinite(value) ? line.add("{:.9g}", value) : line.add("null");
}
// The fewest digits that read back as the same double.
void add_number(LineBuffer& line, double value) {
  std::isfinite(value) ? line.add("{}", value) : line.add("null");
}

// ,"key":value
void add_double(LineBuffer& line, const char* key, double value) {
  line.add(",\"{}\":", key);
  add_number(line, value);
}

// "name":, the name of a stranger's model
void add_name(LineBuffer& line, std::string_view name) {
  line.add("\"");
  for (const char c : name) {
    const bool control = static_cast<unsigned char>(c) < 0x20;
    if (control) line.add("\\u{:04x}", static_cast<int>(c));
    if (!control) line.add("{}{}", c == '"' || c == '\\' ? "\\" : "", c);
  }
  line.add("\":");
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
  return writer;
}

void MetricsWriter::also_to_caller() {
  const char* const number = std::getenv("OFSDP_ROWS_FD");
  if (number != nullptr && *number != 0) caller_ = std::atoi(number);
}

Status MetricsWriter::write_line(std::string_view line) {
  // A caller that has stopped reading does not end the run.
  if (caller_ >= 0 && write_text(caller_, line) != 0) caller_ = -1;
  const int error = fd_.valid() ? write_text(fd_.get(), line) : 0;
  if (error == 0) return ok_status();
  return fault("--metrics {}: writing failed: {}", path_, std::strerror(error));
}

Status MetricsWriter::close_line(LineBuffer& line) {
  line.add("}}\n");
  OFSDP_CHECK(!line.cut_off(), "a metrics line of more than {} bytes", line.view().size());
  OFSDP_RETURN_IF_ERROR(write_line(line.view()));
  return write_logs(line.view());
}

Status MetricsWriter::step(const StepRow& row) {
  LineBuffer line;
  line.add("{{\"kind\":\"step\",\"step\":{},\"epoch\":{}", row.step, row.epoch);
  add_float(line, "loss", row.loss);
  add_float(line, "grad_norm", row.grad_norm);
  add_double(line, "lr", row.lr);
  add_float(line, "step_ms", row.step_ms);
  add_float(line, "samples_per_s", row.samples_per_s);
  line.add(",\"peak_bytes\":{}", row.peak_bytes);
  add_losses(line, row.losses);
  return close_line(line);
}

Status MetricsWriter::eval(const EvalRow& row) {
  LineBuffer line;
  line.add("{{\"kind\":\"eval\",\"step\":{},\"epoch\":{}", row.step, row.epoch);
  add_float(line, "loss", row.loss);
  for (const MetricValue& metric : row.metrics) {
    line.add(",");
    add_name(line, metric.name);
    add_number(line, metric.value.value_or(std::nan("")));
  }
  add_losses(line, row.losses);
  return close_line(line);
}

Status MetricsWriter::end(const EndRow& row) {
  const std::string line = format_text(
      "{{\"kind\":\"end\",\"steps\":{},\"seconds\":{},\"median_step_ms\":{},"
      "\"peak_bytes\":[{}],\"planned_peak_bytes\":[{}]{}}}\n",
      row.steps, number_or_null(row.seconds), number_or_null(row.median_step_ms),
      joined(row.peak_bytes, ","), joined(row.planned_peak_bytes, ","),
      row.stopped_early ? ",\"stopped\":\"early\"" : "");
  OFSDP_RETURN_IF_ERROR(write_line(line));
  return write_logs(line);
}

Status MetricsWriter::add_log(const std::string& log, const std::vector<std::string>& metrics,
                              Mode mode) {
  OFSDP_ASSIGN_OR_RETURN(RowLog made,
                         RowLog::open(log, metrics, mode == Mode::kTruncate, logs_.size()));
  logs_.push_back(std::move(made));
  return ok_status();
}

Status MetricsWriter::write_logs(std::string_view line) {
  for (RowLog& log : logs_) OFSDP_RETURN_IF_ERROR(log.write(line));
  return ok_status();
}

}  // namespace ofsdp::runtime
