// --log mlflow:FOLDER, MLflow's file store, in the layout that its own client writes
// (https://github.com/mlflow/mlflow): a folder per experiment and per run, each with meta.yaml; a
// file per metric with lines "milliseconds value step", and one per parameter and tag.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/hash.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/text.h"
#include "runtime/log/row_log.h"

namespace ofsdp::runtime {

namespace {

constexpr const char* kExperiment = "onnx-fsdp";
constexpr size_t kMaxMlflowName = 200;    // MLflow allows 250 bytes
constexpr size_t kMaxMlflowValue = 6000;  // of a parameter
constexpr double kFlushSeconds = 1;

enum class MlflowStatus { kRunning = 1, kFinished = 3, kKilled = 5 };

int64_t milliseconds_since_1970() { return std::llround(seconds_since_1970() * 1e3); }

// Letters, digits and _-./ and spaces are allowed, but no part "." or "..".
std::string mlflow_name(std::string_view name) {
  std::string allowed, part;
  const auto add_part = [&] {
    if (part.empty() || part == "." || part == "..") part = "_";
    allowed += (allowed.empty() ? "" : "/") + part;
    part.clear();
  };
  for (const char c : name) {
    if (c == '/') {
      add_part();
    } else {
      const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' ||
                         c == '.' || c == ' ';
      part += plain ? c : '_';
    }
  }
  add_part();
  return allowed.substr(0, kMaxMlflowName);
}

std::string single_quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : escaped(text)) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}

// The whole path in a file URI, with other characters than RFC 3986's as %XX.
std::string file_uri(const std::filesystem::path& path) {
  std::string uri = "file://";
  for (const char c : path.native()) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    uri += plain ? std::string(1, c) : format_text("%{:02X}", static_cast<unsigned char>(c));
  }
  return uri;
}

Status write_whole(const std::filesystem::path& path, std::string_view text) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid())
    return fault("--log {}: cannot write the file: {}", path.native(), std::strerror(errno));
  return append_to(fd.get(), path.native(), text);
}

// Returns the value of a key in a meta.yaml, without quotes; empty if it is not there.
std::string meta_value(const std::filesystem::path& folder, std::string_view key) {
  std::ifstream file(folder / "meta.yaml");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(format_text("{}: ", key))) continue;
    std::string value = line.substr(key.size() + 2);
    const bool quoted = value.size() >= 2 && value.front() == '\'' && value.back() == '\'';
    if (!quoted) return value;
    value = value.substr(1, value.size() - 2);
    for (size_t at = 0; (at = value.find("''", at)) != std::string::npos; ++at) value.erase(at, 1);
    return value;
  }
  return "";
}

std::vector<std::filesystem::path> folders_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> folders;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code unknown;
    if (at->is_directory(unknown)) folders.push_back(at->path());
  }
  return folders;
}

Status make_experiment(const std::filesystem::path& root, const std::string& id, const char* name) {
  const std::filesystem::path folder = root / id;
  OFSDP_RETURN_IF_ERROR(make_log_folder(folder.native()));
  const int64_t now = milliseconds_since_1970();
  return write_whole(folder / "meta.yaml",
                     format_text("artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\n"
                                 "last_update_time: {}\nlifecycle_stage: active\nname: {}\n",
                                 file_uri(folder), now, id, now, name));
}

// Returns the folder of the experiment, which is made if there is none. A new store also gets
// MLflow's experiment 0, in which its tools look first.
Result<std::filesystem::path> experiment_in(const std::filesystem::path& root) {
  bool any = false;
  for (const std::filesystem::path& folder : folders_in(root)) {
    const std::string name = meta_value(folder, "name");
    any = any || !name.empty();
    if (name == kExperiment) return folder;
  }
  if (!any) OFSDP_RETURN_IF_ERROR(make_experiment(root, "0", "Default"));
  const uint64_t hash = Fnv1a().add(root.native()).value();
  const std::string id = format_text("{:018}", hash % 1000000000000000000u);
  OFSDP_RETURN_IF_ERROR(make_experiment(root, id, kExperiment));
  return root / id;
}

// Returns the newest run whose ID has the prefix; empty if there is none.
std::filesystem::path run_with_prefix(const std::filesystem::path& experiment,
                                      const std::string& prefix) {
  std::filesystem::path newest;
  int64_t start = -1;
  for (const std::filesystem::path& folder : folders_in(experiment)) {
    if (!folder.filename().native().starts_with(prefix)) continue;
    const std::string text = meta_value(folder, "start_time");
    const int64_t time = std::strtoll(text.c_str(), nullptr, 10);
    if (text.empty() || time < start) continue;
    newest = folder;
    start = time;
  }
  return newest;
}

class MlflowLog : public RowLog {
 public:
  explicit MlflowLog(std::filesystem::path run) : run_(std::move(run)) {}
  MlflowLog(const MlflowLog&) = delete;
  MlflowLog& operator=(const MlflowLog&) = delete;
  ~MlflowLog() override {
    if (ended_) return;
    (void)flush();
    (void)write_meta(MlflowStatus::kKilled, milliseconds_since_1970());
  }

  Status begin_new(const LoggedRun& run) {
    name_ = run.name;
    started_ = milliseconds_since_1970();
    for (const char* part : {"metrics", "params", "tags", "artifacts"}) {
      OFSDP_RETURN_IF_ERROR(make_log_folder(run_ / part));
    }
    for (auto [option, value] : run.settings) {
      std::ranges::replace(option, '/', '.');
      OFSDP_RETURN_IF_ERROR(write_whole(run_ / "params" / mlflow_name(option),
                                        escaped(value).substr(0, kMaxMlflowValue)));
    }
    OFSDP_RETURN_IF_ERROR(tag("mlflow.runName", name_));
    OFSDP_RETURN_IF_ERROR(tag("mlflow.source.name", "fsdp-run"));
    OFSDP_RETURN_IF_ERROR(tag("mlflow.source.type", "LOCAL"));
    OFSDP_RETURN_IF_ERROR(tag("mlflow.user", user()));
    return write_meta(MlflowStatus::kRunning, 0);
  }

  Status go_on() {
    name_ = meta_value(run_, "run_name");
    started_ = std::strtoll(meta_value(run_, "start_time").c_str(), nullptr, 10);
    return write_meta(MlflowStatus::kRunning, 0);
  }

  Status write(const nlohmann::json& row) override {
    const double now = seconds_since_1970();
    const int64_t step = step_of_row(row);
    each_scalar(row, '.', [&](const std::string& tag, double value) {
      kept_[mlflow_name(tag)] += format_text("{} {} {}\n", std::llround(now * 1e3), value, step);
    });
    const bool end = row.at("kind") == "end";
    if (!end && now < flushed_ + kFlushSeconds) return {};
    flushed_ = now;
    OFSDP_RETURN_IF_ERROR(flush());
    if (!end) return {};
    ended_ = true;
    return write_meta(MlflowStatus::kFinished, milliseconds_since_1970());
  }

 private:
  static std::string user() {
    const char* const name = std::getenv("USER");
    return name == nullptr || *name == 0 ? "unknown" : name;
  }

  Status tag(const char* name, const std::string& value) const {
    return write_whole(run_ / "tags" / name, escaped(value));
  }

  Status flush() {
    for (auto& [name, lines] : kept_) {
      if (lines.empty()) continue;
      const std::filesystem::path path = run_ / "metrics" / name;
      OFSDP_RETURN_IF_ERROR(make_log_folder(path.parent_path()).with_prefix("--log"));
      UniqueFd fd(
          ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666));
      if (!fd.valid()) {
        return fault("--log {}: cannot write the file: {}", path.native(), std::strerror(errno));
      }
      OFSDP_RETURN_IF_ERROR(append_to(fd.get(), path.native(), lines));
      lines.clear();
    }
    return {};
  }

  // `ended`: milliseconds since 1970; 0: not yet. Renamed into place, since MLflow may read it.
  Status write_meta(MlflowStatus status, int64_t ended) const {
    const std::filesystem::path path = run_ / "meta.yaml", part = run_ / ".meta.yaml.part";
    const std::string id = run_.filename().native();
    OFSDP_RETURN_IF_ERROR(write_whole(
        part,
        format_text(
            "artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: '{}'\n"
            "lifecycle_stage: active\nrun_id: {}\nrun_name: {}\nrun_uuid: {}\nsource_name: ''\n"
            "source_type: 4\nsource_version: ''\nstart_time: {}\nstatus: {}\ntags: []\n"
            "user_id: {}\n",
            file_uri(run_ / "artifacts"), ended == 0 ? "null" : std::to_string(ended),
            run_.parent_path().filename().native(), single_quoted(id), single_quoted(name_),
            single_quoted(id), started_, static_cast<int>(status), single_quoted(user()))));
    if (std::rename(part.c_str(), path.c_str()) == 0) return {};
    return fault("--log {}: cannot write the file: {}", path.native(), std::strerror(errno));
  }

  std::filesystem::path run_;
  std::string name_;
  int64_t started_ = 0;                      // milliseconds since 1970
  std::map<std::string, std::string> kept_;  // each metric's lines that are not written yet
  double flushed_ = 0;                       // seconds since 1970
  bool ended_ = false;
};

}  // namespace

Result<std::unique_ptr<RowLog>> open_mlflow(const std::string& folder,
                                            const RowLogOptions& options) {
  OFSDP_RETURN_IF_ERROR(make_log_folder(folder));
  std::error_code error;
  const std::filesystem::path root = std::filesystem::weakly_canonical(folder, error);
  OFSDP_ASSIGN_OR_RETURN(const std::filesystem::path experiment, experiment_in(root));
  const LoggedRun& run = options.run;
  const std::filesystem::path earlier =
      options.truncates || run.resumed.empty()
          ? ""
          : run_with_prefix(experiment, run_id_prefix(run.resumed));
  auto log = std::make_unique<MlflowLog>(earlier.empty() ? experiment / new_run_id(run.checkpoints)
                                                         : earlier);
  OFSDP_RETURN_IF_ERROR(earlier.empty() ? log->begin_new(run) : log->go_on());
  return std::unique_ptr<RowLog>(std::move(log));
}

}  // namespace ofsdp::runtime
