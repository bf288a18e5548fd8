#include "runtime/log/row_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "fsdp/checkpoint/crc32c.h"
#include "kernels/base/write_text.h"

namespace ofsdp::runtime {
namespace {

constexpr std::string_view kCsvPrefix = "csv:";
// Columns of what stands in objects: of each loss, and of each norm of each unit. The keys of the
// objects have no slash, the rest of the column is a name.
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

// The numbers in a value as scalars; a number a rank has its rank in the tag.
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

// The event of a row: its numbers as scalars.
std::string row_event(const std::string& row) {
  const auto json = nlohmann::json::parse(row);
  const std::string kind = json.at("kind").get<std::string>();
  const auto step = json.at(kind == "end" ? "steps" : "step").get<int64_t>();
  std::string summary;
  for (const auto& [name, value] : json.items()) add_scalars(kind + "/" + name, value, summary);
  return event(step, field(5, summary));
}

// The value of a column in a row, or null.
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

// A resumed run goes on with the csv file that is there.
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

}  // namespace ofsdp::runtime
