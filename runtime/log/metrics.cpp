#include "runtime/log/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "fsdp/checkpoint/crc32c.h"

namespace ofsdp::runtime {
namespace {

// ,"key":value with the nine digits of a float32
void add_float(LineBuffer& line, const char* key, double value) {
  line.add(",\"{}\":", key);
  std::isfinite(value) ? line.add("{:.9g}", value) : line.add("null");
}
// ,"key":value with the fewest digits that read back as the same double
void add_double(LineBuffer& line, const char* key, double value) {
  line.add(",\"{}\":", key);
  std::isfinite(value) ? line.add("{}", value) : line.add("null");
}

// ,"name":value, the name of a stranger's model
void add_named(LineBuffer& line, std::string_view name, double value) {
  line.add(",\"");
  for (const char c : name) {
    const bool control = static_cast<unsigned char>(c) < 0x20;
    if (control) line.add("\\u{:04x}", static_cast<int>(c));
    if (!control) line.add("{}{}", c == '"' || c == '\\' ? "\\" : "", c);
  }
  line.add("\":");
  std::isfinite(value) ? line.add("{}", value) : line.add("null");
}

std::string number_or_null(double value) {
  return std::isfinite(value) ? format_text("{}", value) : std::string("null");
}

constexpr std::string_view kCsvPrefix = "csv:";
constexpr const char* kColumns[] = {"kind",
                                    "step",
                                    "epoch",
                                    "loss",
                                    "grad_norm",
                                    "lr",
                                    "step_ms",
                                    "samples_per_s",
                                    "peak_bytes",
                                    "steps",
                                    "seconds",
                                    "median_step_ms",
                                    "planned_peak_bytes",
                                    "stopped"};

// RFC 4180.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string text_of(const nlohmann::json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string list;
  for (const auto& item : value) list += (list.empty() ? "" : " ") + item.dump();
  return list;
}

// Protocol buffers' wire format (https://protobuf.dev/programming-guides/encoding).
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}
template <typename T>
std::string bytes_of_number(T value) {
  std::string bytes(sizeof(T), 0);
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
std::string field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}

// tensorflow.Event: wall_time, step, then `content`.
std::string event(int64_t step, const std::string& content) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return varint(1 << 3 | 1) + bytes_of_number(now) + varint(2 << 3) +
         varint(static_cast<uint64_t>(step)) + content;
}
std::string file_version() { return field(3, "brain.Event:2"); }

// tensorflow.Summary.Value: tag and simple_value.
std::string scalar(const std::string& tag, double value) {
  return field(1, field(1, tag) + varint(2 << 3 | 5) + bytes_of_number(static_cast<float>(value)));
}

std::string masked_checksum(const std::string& bytes) {
  const uint32_t crc = fsdp::crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return bytes_of_number(static_cast<uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8u));
}

// TFRecord: length, its checksum, data, their checksum.
std::string record(const std::string& data) {
  const std::string length = bytes_of_number(static_cast<uint64_t>(data.size()));
  return length + masked_checksum(length) + data + masked_checksum(data);
}

Status write_bytes(const RowLog& log, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(log.fd.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fault("--log {}: writing failed: {}", log.path, std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return ok_status();
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
  for (std::string_view rest = line; caller_ >= 0 && !rest.empty();) {
    const ssize_t written = ::write(caller_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) caller_ = -1;
    rest.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  while (fd_.valid() && !line.empty()) {
    const ssize_t written = ::write(fd_.get(), line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fault("--metrics {}: writing failed: {}", path_, std::strerror(errno));
    line.remove_prefix(static_cast<size_t>(written));
  }
  return ok_status();
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
  return close_line(line);
}

Status MetricsWriter::eval(const EvalRow& row) {
  LineBuffer line;
  line.add("{{\"kind\":\"eval\",\"step\":{},\"epoch\":{}", row.step, row.epoch);
  add_float(line, "loss", row.loss);
  for (const MetricValue& metric : row.metrics) {
    add_named(line, metric.name, metric.value.value_or(std::nan("")));
  }
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
  RowLog made{
      .is_csv = log.starts_with(kCsvPrefix), .path = log.substr(log.find(':') + 1), .fd = {}};
  if (!made.is_csv) {
    std::error_code error;
    std::filesystem::create_directories(made.path, error);
    if (error) return input_error("--log {}: cannot make the folder: {}", log, error.message());
    made.path += format_text("/events.out.tfevents.{:010}.onnx-fsdp.{}.{}", std::time(nullptr),
                             getpid(), logs_.size());
  }
  const bool truncates = made.is_csv && mode == Mode::kTruncate;
  const int how = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
  made.fd = UniqueFd(::open(made.path.c_str(), how | (truncates ? O_TRUNC : 0), 0666));
  if (!made.fd.valid()) {
    return input_error("--log {}: cannot write the file: {}", log, std::strerror(errno));
  }
  columns_.assign(std::begin(kColumns), std::end(kColumns));
  columns_.insert(columns_.end(), metrics.begin(), metrics.end());
  logs_.push_back(std::move(made));
  const RowLog& last = logs_.back();
  if (!last.is_csv) return write_bytes(last, record(event(0, file_version())));
  const bool begun = lseek(last.fd.get(), 0, SEEK_END) > 0;
  if (begun) return ok_status();
  std::string header;
  for (const std::string& name : columns_) header += (header.empty() ? "" : ",") + csv_cell(name);
  return write_bytes(last, header + "\n");
}

Status MetricsWriter::write_logs(std::string_view line) {
  if (logs_.empty()) return ok_status();
  const std::string row(line);
  for (const RowLog& log : logs_) {
    OFSDP_RETURN_IF_ERROR(log.is_csv ? write_csv(log, row) : write_events(log, row));
  }
  return ok_status();
}

Status MetricsWriter::write_csv(const RowLog& log, const std::string& row) {
  const auto json = nlohmann::json::parse(row);
  std::string line;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const auto found = json.find(columns_[i]);
    if (i > 0) line += ",";
    if (found != json.end()) line += csv_cell(text_of(*found));
  }
  return write_bytes(log, line + "\n");
}

Status MetricsWriter::write_events(const RowLog& log, const std::string& row) {
  const auto json = nlohmann::json::parse(row);
  const std::string kind = json.at("kind").get<std::string>();
  const auto step = json.at(kind == "end" ? "steps" : "step").get<int64_t>();
  std::string summary;
  const auto add = [&](const std::string& name, const nlohmann::json& value) {
    if (value.is_number()) summary += scalar(kind + "/" + name, value.get<double>());
  };
  for (const auto& [name, value] : json.items()) {
    add(name, value);
    if (!value.is_array()) continue;
    for (size_t rank = 0; rank < value.size(); ++rank) {
      add(format_text("{}/{}", name, rank), value[rank]);
    }
  }
  return write_bytes(log, record(event(step, field(5, summary))));
}

}  // namespace ofsdp::runtime
