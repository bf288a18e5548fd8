#include "runtime/log/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "fsdp/checkpoint/disk.h"
#include "kernels/base/posix_file.h"

namespace ofsdp::runtime {

namespace {

constexpr MetricTraits kMetrics[] = {
#define METRIC(name, Kind, ...) {__VA_ARGS__},
#include "runtime/log/metrics.inc"
};

constexpr std::string_view kCsvPrefix = "csv:";
// Columns from nested objects: each loss, and each norm of each unit. Keys of the objects have no
// slash, so the name follows.
struct InObjects {
  std::string_view prefix;
  int depth;
};
constexpr InObjects kInObjects[] = {{"losses/", 1}, {"watch/", 2}};
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

// Adds the numbers in a value as scalars; if there is one per rank, the tag contains the rank.
void add_scalars(const std::string& tag, const nlohmann::json& value, std::string& summary) {
  if (value.is_number()) summary += scalar(tag, value.get<double>());
  if (value.is_boolean()) summary += scalar(tag, value.get<bool>() ? 1 : 0);
  if (value.is_object()) {
    for (const auto& [part, number] : value.items()) {
      add_scalars(format_text("{}/{}", tag, part), number, summary);
    }
  }
  for (size_t rank = 0; value.is_array() && rank < value.size(); ++rank) {
    add_scalars(format_text("{}/{}", tag, rank), value[rank], summary);
  }
}

// Returns the event with a row's numbers as scalars.
std::string row_event(const std::string& row) {
  const auto json = nlohmann::json::parse(row);
  const std::string kind = json.at("kind").get<std::string>();
  const auto step = json.at(kind == "end" ? "steps" : "step").get<int64_t>();
  std::string summary;
  for (const auto& [name, value] : json.items()) add_scalars(kind + "/" + name, value, summary);
  return event(step, field(5, summary));
}

// Returns a column's value in a row, or null.
nlohmann::json value_of(const nlohmann::json& row, std::string_view column) {
  const nlohmann::json* object = &row;
  for (const InObjects& in : kInObjects) {
    if (!column.starts_with(in.prefix)) continue;
    for (int depth = 0; depth < in.depth; ++depth) {
      const std::string key(column.substr(0, column.find('/')));
      if (!object->contains(key)) return nullptr;
      object = &object->at(key);
      column.remove_prefix(key.size() + 1);
    }
    break;
  }
  const auto found = object->find(std::string(column));
  return found == object->end() ? nlohmann::json() : *found;
}

}  // namespace

const MetricTraits& metric_traits(MetricKind kind) { return kMetrics[static_cast<size_t>(kind)]; }

bool lower_is_better(std::span<const MetricSpec> metrics, std::string_view name) {
  const auto found = std::ranges::find(metrics, name, &MetricSpec::name);
  return found == metrics.end() || metric_traits(found->kind).lower_is_better;
}

Result<RowLog> RowLog::open(const std::string& log, const std::vector<std::string>& metrics,
                            bool truncates, size_t number) {
  RowLog made;
  made.is_csv_ = log.starts_with(kCsvPrefix);
  made.path_ = log.substr(log.find(':') + 1);
  if (!made.is_csv_) {
    std::error_code error;
    std::filesystem::create_directories(made.path_, error);
    if (error) return input_error("--log {}: cannot make the folder: {}", log, error.message());
    made.path_ += format_text("/events.out.tfevents.{:010}.onnx-fsdp.{}.{}", std::time(nullptr),
                              getpid(), number);
  }
  const int how = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
  const bool empties = made.is_csv_ && truncates;
  made.fd_ = UniqueFd(::open(made.path_.c_str(), how | (empties ? O_TRUNC : 0), 0666));
  if (!made.fd_.valid()) {
    return input_error("--log {}: cannot write the file: {}", log, std::strerror(errno));
  }
  OFSDP_RETURN_IF_ERROR(made.begin(metrics));
  return made;
}

// A resumed run appends to an existing csv file.
Status RowLog::begin(const std::vector<std::string>& metrics) {
  if (!is_csv_) return write_bytes(record(event(0, file_version())));
  columns_.assign(std::begin(kColumns), std::end(kColumns));
  columns_.insert(columns_.end(), metrics.begin(), metrics.end());
  if (lseek(fd_.get(), 0, SEEK_END) > 0) return ok_status();
  std::string header;
  for (const std::string& name : columns_) header += (header.empty() ? "" : ",") + csv_cell(name);
  return write_bytes(header + "\n");
}

Status RowLog::write(std::string_view row) {
  const std::string text(row);
  return write_bytes(is_csv_ ? csv_line(text) : record(row_event(text)));
}

std::string RowLog::csv_line(const std::string& row) const {
  const auto json = nlohmann::json::parse(row);
  std::string line;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (i > 0) line += ",";
    line += csv_cell(text_of(value_of(json, columns_[i])));
  }
  return line + "\n";
}

Status RowLog::write_bytes(std::string_view bytes) const {
  const int error = write_text(fd_.get(), bytes);
  if (error == 0) return ok_status();
  return fault("--log {}: writing failed: {}", path_, std::strerror(error));
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
  return writer;
}

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
