#include "runtime/log/row_log.h"

#include <fcntl.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "fsdp/checkpoint/disk.h"
#include "kernels/base/hash.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/text.h"

namespace ofsdp::runtime {

namespace {

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

std::string text_of(const nlohmann::json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string list;
  for (const auto& item : value) list += (list.empty() ? "" : " ") + item.dump();
  return list;
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

Result<UniqueFd> open_log_file(const std::string& path, bool empties) {
  const int how = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
  UniqueFd fd(::open(path.c_str(), how | (empties ? O_TRUNC : 0), 0666));
  if (fd.valid()) return fd;
  return input_error("cannot write the file: {}", std::strerror(errno));
}

// Splits a line of csv_cell's cells.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool quote = line[i] == '"', escapes = quoted && line.substr(i).starts_with("\"\"");
    if (quote && !escapes) {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
      if (escapes) ++i;
    }
  }
  return cells;
}

class CsvLog : public RowLog {
 public:
  CsvLog(const std::string& path, UniqueFd fd, std::vector<std::string> columns)
      : path_(path), fd_(std::move(fd)), columns_(std::move(columns)) {}

  // A resumed run appends to an existing file, which gets the columns that it lacks.
  Status begin() {
    if (lseek(fd_.get(), 0, SEEK_END) == 0) return append_to(fd_.get(), path_, header());
    std::ifstream file(path_, std::ios::binary);
    std::string first;
    std::getline(file, first);
    std::vector<std::string> columns = cells_of(first);
    const size_t had = columns.size();
    for (const std::string& name : columns_) {
      if (std::ranges::count(columns, name) == 0) columns.push_back(name);
    }
    columns_ = std::move(columns);
    return columns_.size() == had ? ok_status() : widen(file, columns_.size() - had);
  }

  Status write(const nlohmann::json& row) override {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) line += ",";
      line += csv_cell(text_of(value_of(row, columns_[i])));
    }
    return append_to(fd_.get(), path_, line + "\n");
  }

 private:
  std::string header() const {
    std::string line;
    for (const std::string& name : columns_) line += (line.empty() ? "" : ",") + csv_cell(name);
    return line + "\n";
  }

  // Writes the file anew, with empty cells in the rows that follow in `file`.
  Status widen(std::ifstream& file, size_t added) {
    std::string bytes = header();
    for (std::string line; std::getline(file, line);) {
      bytes += line + std::string(added, ',') + "\n";
    }
    const std::string made = path_ + ".new";
    OFSDP_RETURN_IF_ERROR(fsdp::write_whole_file(made, bytes));
    OFSDP_RETURN_IF_ERROR(fsdp::take_name(made, path_));
    OFSDP_ASSIGN_OR_RETURN(fd_, open_log_file(path_, /*empties=*/false));
    return {};
  }

  std::string path_;
  UniqueFd fd_;
  std::vector<std::string> columns_;
};

template <typename T>
std::string bytes_of_number(T value) {
  std::string bytes(sizeof(T), 0);
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// tensorflow.Event: wall_time, step, then `content`.
std::string event(int64_t step, const std::string& content) {
  return wire_varint(1 << 3 | 1) + bytes_of_number(seconds_since_1970()) +
         wire_number(2, static_cast<uint64_t>(step)) + content;
}

// tensorflow.Summary.Value: tag and simple_value.
std::string scalar(const std::string& tag, double value) {
  return wire_field(
      1, wire_field(1, tag) + wire_varint(2 << 3 | 5) + bytes_of_number(static_cast<float>(value)));
}

std::string masked_checksum(const std::string& bytes) {
  const uint32_t crc = fsdp::crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return bytes_of_number(static_cast<uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8u));
}

// TFRecord: length, its checksum, data, their checksum.
std::string tf_record(const std::string& data) {
  const std::string length = bytes_of_number(static_cast<uint64_t>(data.size()));
  return length + masked_checksum(length) + data + masked_checksum(data);
}

class TensorboardLog : public RowLog {
 public:
  TensorboardLog(const std::string& path, UniqueFd fd) : path_(path), fd_(std::move(fd)) {}

  Status begin() const { return add(event(0, wire_field(3, "brain.Event:2"))); }  // file_version

  Status write(const nlohmann::json& row) override {
    const std::string kind = row.at("kind").get<std::string>();
    std::string summary;
    for (const auto& [name, value] : row.items()) {
      each_number(kind + "/" + name, value, '/', [&summary](const std::string& tag, double number) {
        summary += scalar(tag, number);
      });
    }
    return add(event(step_of_row(row), wire_field(5, summary)));
  }

 private:
  Status add(const std::string& data) const { return append_to(fd_.get(), path_, tf_record(data)); }

  std::string path_;
  UniqueFd fd_;
};

void add_setting(const std::string& name, const YAML::Node& node,
                 std::vector<std::pair<std::string, std::string>>& settings) {
  if (node.IsMap()) {
    for (const auto& item : node) {
      const std::string key = item.first.as<std::string>();
      add_setting(name.empty() ? key : name + "." + key, item.second, settings);
    }
  } else if (node.IsScalar()) {
    settings.emplace_back(name, node.Scalar());
  } else if (node.IsSequence()) {
    YAML::Emitter flow;
    flow << YAML::Flow << node;
    settings.emplace_back(name, flow.c_str());
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> flat_settings(const std::string& configuration) {
  std::vector<std::pair<std::string, std::string>> settings;
  try {
    add_setting("", YAML::Load(configuration), settings);
  } catch (const YAML::Exception&) {
    settings.clear();  // a log without settings is better than no log
  }
  return settings;
}

Result<std::unique_ptr<RowLog>> open_csv(const std::string& path, const RowLogOptions& options) {
  OFSDP_ASSIGN_OR_RETURN(UniqueFd fd, open_log_file(path, options.truncates));
  std::vector<std::string> columns(std::begin(kColumns), std::end(kColumns));
  columns.insert(columns.end(), options.metrics.begin(), options.metrics.end());
  auto log = std::make_unique<CsvLog>(path, std::move(fd), std::move(columns));
  OFSDP_RETURN_IF_ERROR(log->begin());
  return std::unique_ptr<RowLog>(std::move(log));
}

Result<std::unique_ptr<RowLog>> open_tensorboard(const std::string& folder,
                                                 const RowLogOptions& options) {
  OFSDP_RETURN_IF_ERROR(make_log_folder(folder));
  const std::string path = folder + format_text("/events.out.tfevents.{:010}.onnx-fsdp.{}.{}",
                                                std::time(nullptr), getpid(), options.number);
  OFSDP_ASSIGN_OR_RETURN(UniqueFd fd, open_log_file(path, /*empties=*/false));
  auto log = std::make_unique<TensorboardLog>(path, std::move(fd));
  OFSDP_RETURN_IF_ERROR(log->begin());
  return std::unique_ptr<RowLog>(std::move(log));
}

Result<std::unique_ptr<RowLog>> open_row_log(const std::string& log, const RowLogOptions& options) {
  constexpr std::pair<std::string_view, decltype(&open_csv)> kForms[] = {
      {"csv:", open_csv},
      {"tensorboard:", open_tensorboard},
      {"mlflow:", open_mlflow},
      {"wandb:", open_wandb}};
  for (const auto& [prefix, open] : kForms) {
    if (!log.starts_with(prefix)) continue;
    return prefixed("--log " + log, open(log.substr(prefix.size()), options));
  }
  return input_error("--log {}: expected csv:FILE or tensorboard:, mlflow: or wandb:FOLDER", log);
}

void each_number(const std::string& tag, const nlohmann::json& value, char slash,
                 const std::function<void(const std::string& tag, double value)>& take) {
  if (value.is_number()) take(tag, value.get<double>());
  if (value.is_boolean()) take(tag, value.get<bool>() ? 1 : 0);
  if (value.is_object()) {
    for (const auto& [part, number] : value.items()) {
      std::string name = part;
      std::ranges::replace(name, '/', slash);
      each_number(format_text("{}/{}", tag, name), number, slash, take);
    }
  }
  for (size_t rank = 0; value.is_array() && rank < value.size(); ++rank) {
    each_number(format_text("{}/{}", tag, rank), value[rank], slash, take);
  }
}

void each_scalar(const nlohmann::json& row, char slash,
                 const std::function<void(const std::string& tag, double value)>& take) {
  const std::string kind = row.at("kind").get<std::string>();
  for (const auto& [key, value] : row.items()) {
    if (key == "step" || key == "steps") continue;
    std::string name = key;
    std::ranges::replace(name, '/', slash);
    each_number(kind + "/" + name, value, slash, take);
  }
}

int64_t step_of_row(const nlohmann::json& row) {
  return row.at(row.at("kind") == "end" ? "steps" : "step").get<int64_t>();
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string run_id_prefix(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path whole =
      folder.empty() ? "" : std::filesystem::weakly_canonical(folder, error);
  return format_text("{:016x}", Fnv1a().add(whole.native()).value());
}

std::string new_run_id(const std::string& folder) {
  const std::string run = format_text("{:.9f} {}", seconds_since_1970(), getpid());
  return run_id_prefix(folder) + format_text("{:016x}", Fnv1a().add(run).value());
}

Status append_to(int fd, const std::string& path, std::string_view bytes) {
  const int error = write_text(fd, bytes);
  if (error == 0) return ok_status();
  return fault("--log {}: writing failed: {}", path, std::strerror(error));
}

Status make_log_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return input_error("cannot make the folder: {}", error.message());
  return {};
}

std::string wire_varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}

std::string wire_field(int number, std::string_view bytes) {
  return wire_varint(static_cast<uint64_t>(number) << 3 | 2) + wire_varint(bytes.size()) +
         std::string(bytes);
}

std::string wire_number(int number, uint64_t value) {
  return wire_varint(static_cast<uint64_t>(number) << 3) + wire_varint(value);
}

}  // namespace ofsdp::runtime
