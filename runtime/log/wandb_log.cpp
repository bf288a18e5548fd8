// --log wandb:FOLDER, an offline run of Weights & Biases. The file is a header, then records of
// wandb/proto/wandb_internal.proto (https://github.com/wandb/wandb) in the framing of LevelDB's log
// (https://github.com/google/leveldb/blob/main/doc/log_format.md), but with zlib's CRC-32.
//
// All rows of a step are one record of the history, since its steps must grow. A step's record is
// written with its evaluation or the next step.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "kernels/base/posix_file.h"
#include "kernels/base/text.h"
#include "runtime/log/row_log.h"

namespace ofsdp::runtime {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWandbHeader(":W&B\xe1\xbe\x00", 7);
constexpr size_t kFrameBlock = 32768, kFrameHeader = 7;
enum FrameType : uint8_t { kWhole = 1, kFirst, kMiddle, kLast };

// Fields of the messages; the names are those of the .proto file.
constexpr int kRecordNum = 1, kRecordHistory = 2, kRecordSummary = 3, kRecordRun = 17,
              kRecordExit = 18, kRecordHeader = 21;
constexpr int kRunId = 1, kRunProject = 3, kRunConfig = 4, kRunDisplayName = 8, kRunStartTime = 17;
constexpr int kItem = 1, kItemKey = 1, kItemValueJson = 16, kHistoryStep = 2, kStepNum = 1;
constexpr int kTimestampSeconds = 1, kExitRuntime = 2;

std::string little_endian(uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i);
  return text;
}

uint32_t from_little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

uint32_t frame_checksum(uint8_t type, std::string_view data) {
  const auto* const bytes = reinterpret_cast<const Bytef*>(data.data());
  return static_cast<uint32_t>(crc32(crc32(0, &type, 1), bytes, static_cast<uInt>(data.size())));
}

std::string frame(uint8_t type, std::string_view data) {
  return little_endian(frame_checksum(type, data), 4) +
         little_endian(static_cast<uint32_t>(data.size()), 2) + static_cast<char>(type) +
         std::string(data);
}

// Returns a record's frames for a file of `position` bytes: a frame does not cross a block.
std::string framed(std::string_view data, size_t position) {
  std::string bytes;
  for (bool first = true; first || !data.empty(); first = false) {
    size_t room = kFrameBlock - (position + bytes.size()) % kFrameBlock;
    if (room < kFrameHeader) {
      bytes += std::string(room, '\0');
      room = kFrameBlock;
    }
    const size_t size = std::min(data.size(), room - kFrameHeader);
    const bool last = size == data.size();
    bytes +=
        frame(first ? (last ? kWhole : kFirst) : (last ? kLast : kMiddle), data.substr(0, size));
    data.remove_prefix(size);
    if (last) break;
  }
  return bytes;
}

// Reads the record at `position`, which moves past it; none at the end or if it is cut off.
std::optional<std::string> next_record(std::string_view file, size_t& position) {
  std::string record;
  for (size_t at = position;;) {
    const size_t room = kFrameBlock - at % kFrameBlock;
    if (room < kFrameHeader) at += room;
    if (at + kFrameHeader > file.size()) return std::nullopt;
    const size_t size = from_little_endian(file.substr(at + 4, 2));
    const auto type = static_cast<uint8_t>(file[at + 6]);
    const std::string_view data = file.substr(at + kFrameHeader, size);
    const bool whole =
        data.size() == size && from_little_endian(file.substr(at, 4)) == frame_checksum(type, data);
    if (!whole) return std::nullopt;
    record += data;
    at += kFrameHeader + size;
    if (type == kFirst || type == kMiddle) continue;
    position = at;
    return record;
  }
}

std::optional<uint64_t> read_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return value;
  }
  return std::nullopt;
}

struct WireValue {
  uint64_t number = 0;     // of a varint
  std::string_view bytes;  // of a message
};

// Returns the field of a message; none if it is not there. Reads the kinds of fields that this file
// writes.
std::optional<WireValue> wire_value(std::string_view message, int field) {
  while (!message.empty()) {
    const auto key = read_varint(message);
    const auto value = key ? read_varint(message) : std::nullopt;
    if (!value) return std::nullopt;
    const bool is_message = (*key & 7) == 2;
    if (is_message && *value > message.size()) return std::nullopt;
    const std::string_view bytes = message.substr(0, is_message ? *value : 0);
    if (static_cast<int>(*key >> 3) == field) return WireValue{*value, bytes};
    message.remove_prefix(bytes.size());
  }
  return std::nullopt;
}

std::string wandb_item(std::string_view key, const std::string& json) {
  return wire_field(kItem, wire_field(kItemKey, key) + wire_field(kItemValueJson, json));
}

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A number or a word of JSON stays one.
std::string setting_json(const std::string& text) {
  const auto value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_number() || value.is_boolean() ? text : json_text(text);
}

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y%m%d_%H%M%S", &local);
  return {text.data(), size};
}

// Returns the folder of the newest run whose ID has the prefix; empty if there is none.
fs::path newest_offline_run(const fs::path& root, const std::string& prefix) {
  fs::path newest;
  std::error_code error;
  for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().native();
    const bool same = name.starts_with("offline-run-") && name.find("-" + prefix) == 27;
    if (same && (newest.empty() || newest.filename().native() < name)) newest = at->path();
  }
  return newest;
}

class WandbLog : public RowLog {
 public:
  WandbLog() = default;
  WandbLog(const WandbLog&) = delete;
  WandbLog& operator=(const WandbLog&) = delete;
  ~WandbLog() override {
    if (ended_ || !fd_.valid()) return;
    (void)flush();
    (void)add(kRecordSummary, items(summary_));
  }

  Status begin_new(const fs::path& root, const LoggedRun& run) {
    const std::string id = new_run_id(run.checkpoints);
    const fs::path folder = root / ("offline-run-" + local_time() + "-" + id);
    OFSDP_RETURN_IF_ERROR(make_log_folder(folder / "files"));
    OFSDP_RETURN_IF_ERROR(open(folder / ("run-" + id + ".wandb"), O_CREAT | O_EXCL));
    point_latest_to(folder);
    started_ = seconds_since_1970();
    OFSDP_RETURN_IF_ERROR(append_to(fd_.get(), path_, kWandbHeader));
    position_ = kWandbHeader.size();
    OFSDP_RETURN_IF_ERROR(
        add(kRecordHeader, wire_field(1, wire_field(1, "onnx-fsdp") + wire_field(2, "0.40.0"))));
    std::string config;
    for (const auto& [option, value] : run.settings) {
      config += wandb_item(option, setting_json(value));
    }
    return add(kRecordRun,
               wire_field(kRunId, id) + wire_field(kRunProject, "onnx-fsdp") +
                   wire_field(kRunConfig, config) + wire_field(kRunDisplayName, run.name) +
                   wire_field(kRunStartTime,
                              wire_number(kTimestampSeconds, static_cast<uint64_t>(started_))));
  }

  // Goes on after the last whole record, in place of an exit. Returns false if the folder has no
  // file of a run.
  Result<bool> go_on(const fs::path& folder) {
    const std::string id = folder.filename().native().substr(28);
    const fs::path path = folder / ("run-" + id + ".wandb");
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    const std::string file = text.str();
    if (!file.starts_with(kWandbHeader)) return false;
    position_ = kWandbHeader.size();
    for (size_t next = position_;; position_ = next) {
      const std::optional<std::string> record = next_record(file, next);
      if (!record || wire_value(*record, kRecordExit)) break;
      take(*record);
    }
    OFSDP_RETURN_IF_ERROR(open(path, 0));
    if (ftruncate(fd_.get(), static_cast<off_t>(position_)) != 0) {
      return fault("{}: cannot be cut: {}", path_, std::strerror(errno));
    }
    return true;
  }

  Status write(const nlohmann::json& row) override {
    const int64_t step = step_of_row(row);
    const std::string kind = row.at("kind").get<std::string>();
    if (kind == "end") return write_end(row);
    if (step <= last_step_) return {};
    if (!kept_.empty() && step != kept_step_) OFSDP_RETURN_IF_ERROR(flush());
    kept_step_ = step;
    each_scalar(row, '/', [this](const std::string& tag, double value) {
      kept_[tag] = summary_[tag] = nlohmann::json(value).dump();
    });
    if (kind != "eval") return {};
    OFSDP_RETURN_IF_ERROR(flush());
    return add(kRecordSummary, items(summary_));
  }

 private:
  using Items = std::map<std::string, std::string>;  // key and JSON

  static std::string items(const Items& all) {
    std::string bytes;
    for (const auto& [key, json] : all) bytes += wandb_item(key, json);
    return bytes;
  }

  static void point_latest_to(const fs::path& folder) {
    const fs::path link = folder.parent_path() / "latest-run";
    std::error_code error;
    if (fs::is_symlink(fs::symlink_status(link, error))) fs::remove(link, error);
    fs::create_directory_symlink(folder.filename(), link, error);  // a convenience
  }

  Status open(const fs::path& path, int how) {
    path_ = path.native();
    fd_ = UniqueFd(::open(path.c_str(), how | O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (fd_.valid()) return {};
    return input_error("cannot write the file: {}", std::strerror(errno));
  }

  Status add(int kind, const std::string& message) {
    const std::string record = wire_number(kRecordNum, ++records_) + wire_field(kind, message);
    const std::string bytes = framed(record, position_);
    position_ += bytes.size();
    return append_to(fd_.get(), path_, bytes);
  }

  // Takes the numbers of a record of this run that is in the file.
  void take(std::string_view record) {
    if (const auto number = wire_value(record, kRecordNum)) records_ = number->number;
    if (const auto history = wire_value(record, kRecordHistory)) {
      const auto step = wire_value(history->bytes, kHistoryStep);
      const auto number = step ? wire_value(step->bytes, kStepNum) : std::nullopt;
      if (number) last_step_ = static_cast<int64_t>(number->number);
    }
    if (const auto run = wire_value(record, kRecordRun)) {
      const auto start = wire_value(run->bytes, kRunStartTime);
      const auto seconds = start ? wire_value(start->bytes, kTimestampSeconds) : std::nullopt;
      if (seconds) started_ = static_cast<double>(seconds->number);
    }
  }

  // Writes the rows of the present step.
  Status flush() {
    if (kept_.empty()) return {};
    const double now = seconds_since_1970();
    kept_["_step"] = std::to_string(kept_step_);
    kept_["_timestamp"] = nlohmann::json(now).dump();
    kept_["_runtime"] = nlohmann::json(now - started_).dump();
    for (const char* key : {"_step", "_timestamp", "_runtime"}) summary_[key] = kept_[key];
    const std::string step = wire_number(kStepNum, static_cast<uint64_t>(kept_step_));
    last_step_ = kept_step_;
    return add(kRecordHistory, items(std::exchange(kept_, {})) + wire_field(kHistoryStep, step));
  }

  Status write_end(const nlohmann::json& row) {
    OFSDP_RETURN_IF_ERROR(flush());
    each_scalar(row, '/', [this](const std::string& tag, double value) {
      summary_[tag] = nlohmann::json(value).dump();
    });
    OFSDP_RETURN_IF_ERROR(add(kRecordSummary, items(summary_)));
    ended_ = true;
    const auto runtime = static_cast<uint64_t>(std::max(seconds_since_1970() - started_, 0.0));
    return add(kRecordExit, wire_number(kExitRuntime, runtime));
  }

  std::string path_;
  UniqueFd fd_;
  size_t position_ = 0;  // bytes in the file
  uint64_t records_ = 0;
  double started_ = 0;  // seconds since 1970
  int64_t last_step_ = -1, kept_step_ = 0;
  Items kept_, summary_;
  bool ended_ = false;
};

}  // namespace

Result<std::unique_ptr<RowLog>> open_wandb(const std::string& folder,
                                           const RowLogOptions& options) {
  const fs::path root = fs::path(folder) / "wandb";
  OFSDP_RETURN_IF_ERROR(make_log_folder(root.native()));
  const LoggedRun& run = options.run;
  auto log = std::make_unique<WandbLog>();
  const fs::path earlier = options.truncates || run.resumed.empty()
                               ? ""
                               : newest_offline_run(root, run_id_prefix(run.resumed));
  bool goes_on = false;
  if (!earlier.empty()) {
    OFSDP_ASSIGN_OR_RETURN(goes_on, log->go_on(earlier));
  }
  if (!goes_on) OFSDP_RETURN_IF_ERROR(log->begin_new(root, run));
  return std::unique_ptr<RowLog>(std::move(log));
}

}  // namespace ofsdp::runtime
